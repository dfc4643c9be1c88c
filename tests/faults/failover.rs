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
    let pool = Config::from_urls(sentinel.sentinel_urls(), name.clone(), SentinelServerType::Master)
        .create_pool(Some(Runtime::Tokio1))
        .unwrap();
    let by_urls = Store::builder().sentinel(sentinel.sentinel_urls(), &name).unwrap();
    let bucket = |store: &Store| TokenBucket::new(store, "failover", Quota::per_hour(1).burst(1000)).unwrap();
    let buckets = [bucket(&Store::from(pool)), bucket(&by_urls)];
    let are_served = async || {
        let outcomes = futures::future::join_all(buckets.iter().map(|bucket| bucket.allow("k"))).await;
        outcomes.iter().all(Result::is_ok)
    };
    assert!(are_served().await);
    let old = sentinel.master().port();
    sentinel.failover().await;
    eventually("the new master to be used", Duration::from_secs(30), async || {
        are_served().await && sentinel.master().query(&["EXISTS", "td:{failover:k}:tat"]) == Ok(1)
    })
    .await;
    assert_ne!(sentinel.master().port(), old);
    sentinel.settled().await;
    sentinel.kill_master().await;
    eventually("the next master to be used", Duration::from_secs(30), async || are_served().await).await;
}
