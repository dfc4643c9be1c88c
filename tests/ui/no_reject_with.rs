use axum::Router;
use axum::extract::Request;
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};

fn main() {
    let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5)).unwrap();
    let layer = RateLimitLayer::new(bucket, |_: &Request| "all");
    let _: Router = Router::new().layer(layer);
}
