//! A Cluster of which one master gives no answer.
#![cfg(feature = "cluster")]

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Store, WaitGroup};

use crate::leases::kinds::{Family, SOON};
use support::cluster::RedisCluster;
use support::eventually;
use support::requires;

/// More than the calls that withdraw waiters at once.
const CROWD: u64 = 300;
const FEW: u64 = 20;

/// A crowd whose master stands still goes away. Those who wait at another master go away after it, and do not have to wait for
/// it.
#[tokio::test]
async fn who_goes_away_is_withdrawn_though_another_master_stands_still() {
    requires!(support::program::since_7_0());
    let cluster = RedisCluster::start().await;
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let store = Store::builder()
        .timeout(Duration::from_millis(250))
        .cluster(cluster.urls())
        .unwrap();
    let family = Family::Permits(WaitGroup::new(&store, "apart", 1).unwrap());
    let node = |key: &str| cluster.node_of(&family.part(key, "holders"));
    let still = "still";
    let other = (0..100)
        .map(|n| n.to_string())
        .find(|key| node(key).port() != node(still).port())
        .unwrap();
    let (stands, serves) = (node(still), node(&other));
    let mut held = Vec::new();
    for key in [still, &other] {
        eventually("a connection", SOON, async || {
            held.extend(family.try_take(key).await.ok());
            held.last()
                .is_some_and(|taken| taken.key().as_bytes() == key.as_bytes())
        })
        .await;
    }
    let crowd = |key: &str, count| {
        let waiter = |_| {
            let (family, key) = (family.clone(), key.to_owned());
            tokio::spawn(async move { drop(family.take(&key).await) })
        };
        (0..count).map(waiter).collect::<Vec<_>>()
    };
    let (many, few) = (crowd(still, CROWD), crowd(&other, FEW));
    let wait =
        async || family.waiting(stands, still) == CROWD && family.waiting(serves, &other) == FEW;
    eventually("all to wait", SOON, wait).await;
    stands.pause();
    for waiters in [many, few] {
        waiters.iter().for_each(|waiter| waiter.abort());
        join_all(waiters).await;
    }
    eventually("the few to be withdrawn", SOON, async || {
        family.waiting(serves, &other) == 0
    })
    .await;
    stands.resume();
    eventually("the crowd to be withdrawn", SOON, async || {
        family.waiting(stands, still) == 0
    })
    .await;
    for taken in held {
        assert!(taken.release().await.unwrap());
    }
}
