//! A pool of the user's own goes on serving the user.

use deadpool_redis::{Config, Runtime, redis};
use tower_distributed::{Quota, Store, TokenBucket};

use crate::support::redis_server::RedisServer;

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
    let pong: String = redis::cmd("PING").query_async(&mut users_own).await.unwrap();
    assert_eq!(pong, "PONG");
}

#[tokio::test]
async fn settings_are_checked_when_a_store_is_built() {
    let zero = std::time::Duration::ZERO;
    for (builder, named) in [
        (Store::builder().prefix("a b"), "\"a b\""),
        (Store::builder().prefix("{x}"), "\"{x}\""),
        (Store::builder().timeout(zero), "0ns"),
        (Store::builder().lanes(0), "0"),
        (Store::builder().lanes(65), "65"),
    ] {
        let error = builder.redis("redis://127.0.0.1/").unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains(named), "{error}");
    }
    let error = Store::redis("http://user:secret@127.0.0.1/").unwrap_err();
    assert!(error.is_invalid() && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_prefix_keeps_stores_apart() {
    let server = RedisServer::start().await;
    for prefix in ["a", "b"] {
        let store = Store::builder().prefix(prefix).redis(&server.url()).unwrap();
        let bucket = TokenBucket::new(&store, "same", Quota::per_hour(1)).unwrap();
        assert!(bucket.allow("k").await.unwrap().is_admitted());
        assert_eq!(server.query(&["EXISTS", &format!("{prefix}:{{same:k}}:tat")]), Ok(1));
    }
}
