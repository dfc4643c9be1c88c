//! Sentinel names another master.

use std::time::Duration;

use deadpool_redis::Runtime;
use deadpool_redis::sentinel::{Config, SentinelServerType};
use tower_distributed::{Quota, Store, TokenBucket};

use crate::support::eventually;
use crate::support::sentinel::Sentinel;

#[tokio::test]
async fn a_store_follows_the_master() {
    let sentinel = Sentinel::start().await;
    let name = sentinel.service_name().to_owned();
    let pool = Config::from_urls(sentinel.sentinel_urls(), name, SentinelServerType::Master)
        .create_pool(Some(Runtime::Tokio1))
        .unwrap();
    let bucket = TokenBucket::new(&Store::from(pool), "failover", Quota::per_hour(1).burst(100)).unwrap();
    assert!(bucket.allow("k").await.unwrap().is_admitted());
    let old = sentinel.master().port();
    sentinel.failover().await;
    eventually("the new master to be used", Duration::from_secs(30), async || {
        bucket.allow("k").await.is_ok()
            && sentinel.master().query(&["EXISTS", "td:{failover:k}:tat"]) == Ok(1)
    })
    .await;
    assert_ne!(sentinel.master().port(), old);
    sentinel.settled().await;
    sentinel.kill_master().await;
    eventually("the next master to be used", Duration::from_secs(30), async || {
        bucket.allow("k").await.is_ok()
    })
    .await;
}
