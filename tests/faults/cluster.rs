//! One master of a Cluster is away.

use std::time::Duration;

use deadpool_redis::Runtime;
use deadpool_redis::cluster::Config;
use tower_distributed::{Quota, Store, TokenBucket};

use crate::support::cluster::RedisCluster;
use crate::support::eventually;

#[tokio::test]
async fn keys_of_other_masters_are_not_concerned() {
    let cluster = RedisCluster::start().await;
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let pool = Config::from_urls(cluster.urls()).create_pool(Some(Runtime::Tokio1)).unwrap();
    let bucket = TokenBucket::new(&Store::from(pool), "shards", Quota::per_hour(1).burst(1000)).unwrap();
    let lost_port = cluster.nodes()[0].port();
    let (mut lost, mut healthy) = (Vec::new(), Vec::new());
    for key in 0..30 {
        bucket.allow(key).await.unwrap();
        let node = cluster.node_of(&format!("td:{{shards:{key}}}:tat"));
        if node.port() == lost_port { lost.push(key) } else { healthy.push(key) }
    }
    cluster.nodes()[0].kill9();
    eventually("the healthy keys to be served", Duration::from_secs(30), async || {
        bucket.allow(healthy[0]).await.is_ok()
    })
    .await;
    // More failures than it takes to open a breaker.
    for &key in lost.iter().cycle().take(6) {
        assert!(bucket.allow(key).await.unwrap_err().is_unavailable());
        for &key in &healthy {
            assert!(bucket.allow(key).await.unwrap().is_admitted());
        }
    }
}
