//! A pool of the user's own goes on serving the user.

use deadpool_redis::{Config, Runtime, redis};
use tower_distributed::{Quota, Store, TokenBucket};

use support::redis_server::RedisServer;

#[tokio::test]
async fn a_store_takes_nothing_away_from_a_pool_of_one() {
    let server = RedisServer::start().await;
    let pool = Config::from_url(server.url())
        .builder()
        .unwrap()
        .max_size(1)
        .runtime(Runtime::Tokio1)
        .build()
        .unwrap();
    let bucket = TokenBucket::new(&Store::from(pool.clone()), "pool", Quota::per_hour(1)).unwrap();
    assert!(bucket.allow("k").await.unwrap().is_admitted());
    let mut users_own = pool.get().await.unwrap();
    assert!(!bucket.allow("k").await.unwrap().is_admitted());
    let pong: String = redis::cmd("PING")
        .query_async(&mut users_own)
        .await
        .unwrap();
    assert_eq!(pong, "PONG");
}
