use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};

fn limit(store: &Store) -> RateLimitLayer<Request, Response> {
    let bucket = TokenBucket::new(store, "api", Quota::per_second(5)).unwrap();
    RateLimitLayer::new(bucket, |_: &Request| "all")
}

fn main() {
    let _: Router = Router::new().layer(limit(&Store::in_memory()));
}
