use axum::extract::Request;
use tower_distributed::{Quota, Store, TokenBucket, web};

fn main() {
    let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5)).unwrap();
    let user = |request: &Request| {
        request
            .headers()
            .get("user")
            .and_then(|user| user.to_str().ok())
    };
    let _: axum::Router = axum::Router::new().layer(web::rate_limit(bucket, user));
}
