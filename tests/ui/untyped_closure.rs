use axum::Router;
use tower_distributed::{Quota, Store, TokenBucket, web};

fn main() {
    let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(5)).unwrap();
    let _: Router = Router::new().layer(web::rate_limit(bucket, |_| "all"));
}
