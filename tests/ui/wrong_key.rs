use axum::Router;
use axum::extract::Request;
use tower_distributed::{Quota, Store, TokenBucket, web};

struct User(u64);

fn main() {
    let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5)).unwrap();
    let user = |request: &Request| User(request.uri().path().len() as u64);
    let _: Router = Router::new().layer(web::rate_limit(bucket, user));
}
