//! A server that has as many clients as it allows.

use deadpool_redis::redis::cmd;
use tower_distributed::{Quota, Store, TokenBucket};

use support::redis_server::RedisServer;

#[tokio::test]
async fn a_server_with_too_many_clients_is_told_with_the_remedy() {
    let server = RedisServer::start().await;
    let mut only = server.client().unwrap();
    only.query::<String>(cmd("CONFIG").arg("SET").arg("maxclients").arg(1)).unwrap();
    let bucket = TokenBucket::new(&Store::redis(&server.url()).unwrap(), "full", Quota::per_hour(1)).unwrap();
    let error = bucket.allow("k").await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(error.to_string().contains("`maxclients`"), "{error}");
    only.query::<String>(cmd("CONFIG").arg("SET").arg("maxclients").arg(100)).unwrap();
}
