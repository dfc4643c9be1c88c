use axum::Router;
use axum::extract::Request;
use tower_distributed::{Quota, Store, TokenBucket, extract, web};

fn main() {
    let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5)).unwrap();
    let length = |request: &Request| request.uri().path().len();
    let _: Router = Router::new().layer(web::rate_limit(bucket, extract::path()).cost(length));
}
