//! Quotas are looked up by a boxed future.

use tower_distributed::{Quota, Quotas, RateLimitLayer, Store, TokenBucket};

async fn plan(_: String) -> Option<Quotas> {
    None
}

fn main() {
    let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(1)).unwrap();
    let _: RateLimitLayer<String, ()> =
        RateLimitLayer::new(bucket, |customer: &String| customer.clone())
            .quotas(|customer: &String| plan(customer.clone()));
}
