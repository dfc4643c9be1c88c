use tower::{Layer, Service, service_fn};
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};

fn main() {
    let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5)).unwrap();
    let layer = RateLimitLayer::new(bucket, |name: &String| name.clone());
    let inner = tower::util::BoxService::new(service_fn(async |name: String| {
        Ok::<_, std::io::Error>(name)
    }));
    let _ = layer.layer(inner).call("ann".to_owned());
}
