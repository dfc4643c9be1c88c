use axum::error_handling::HandleErrorLayer;
use axum::extract::Request;
use axum::{BoxError, Router};
use tower::ServiceBuilder;
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};

fn main() {
    let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5)).unwrap();
    let layers = ServiceBuilder::new()
        .layer(RateLimitLayer::new(bucket, |_: &Request| "all"))
        .layer(HandleErrorLayer::new(async |_: BoxError| "refused"));
    let _: Router = Router::new().layer(layers);
}
