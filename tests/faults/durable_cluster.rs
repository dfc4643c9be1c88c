//! A Cluster whose locks count once a replica has them, and what a failover does to them.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Mutex, MutexGuard, Quota, Store, TokenBucket};

use support::cluster::RedisCluster;
use support::eventually;
use support::program::since_7_0;
use support::redis_server::RedisServer;
use support::requires;
use support::slot_move::SlotMove;

const SOON: Duration = Duration::from_secs(30);
const LOCKS: usize = 16;

struct Scene {
    cluster: RedisCluster,
    /// Of the first node.
    replica: RedisServer,
    /// Locks that count once the replica has them.
    mutex: Mutex,
    /// Keys of the first node: the others have no replica.
    keys: Vec<u64>,
}

fn durable(cluster: &RedisCluster) -> Store {
    let builder = Store::builder()
        .timeout(SOON)
        .replicas(1, Duration::from_secs(1));
    builder.cluster(cluster.urls()).unwrap()
}

impl Scene {
    async fn new() -> Self {
        let cluster = RedisCluster::start().await;
        let replica = cluster.replica_of(0).await;
        let mutex = Mutex::builder()
            .ttl(2 * SOON)
            .build(&durable(&cluster), "x")
            .unwrap();
        let first = cluster.nodes()[0].port();
        let is_first = |key: &u64| cluster.node_of(&format!("td:{{x:{key}}}:lock")).port() == first;
        let keys = (0..).filter(is_first).take(2 * LOCKS + 1).collect();
        let scene = Self {
            cluster,
            replica,
            mutex,
            keys,
        };
        let is_in_step = async || scene.mutex.try_lock(scene.keys[2 * LOCKS]).await.is_ok();
        eventually("the replica to be in step", SOON, is_in_step).await;
        scene
    }

    async fn lock(&self, keys: &[u64]) -> Vec<(u64, MutexGuard)> {
        let lock = async |key: &u64| Some((*key, self.mutex.try_lock(*key).await.ok()?));
        join_all(keys.iter().map(lock))
            .await
            .into_iter()
            .flatten()
            .collect()
    }
}

#[tokio::test]
async fn a_failover_of_a_cluster_grants_no_lock_twice() {
    requires!(since_7_0());
    let scene = Scene::new().await;
    let (before, later) = scene.keys[..2 * LOCKS].split_at(LOCKS);
    let held = scene.lock(before).await;
    assert_eq!(held.len(), LOCKS);
    // It lives, but gets nothing more: it cannot log in to the master again.
    scene.replica.cli(&["CONFIG", "SET", "masterauth", "wrong"]);
    scene.replica.cli(&["CLIENT", "KILL", "TYPE", "master"]);
    let unsure = scene.lock(later).await;
    assert!(
        unsure.is_empty(),
        "{} locks count that no replica has",
        unsure.len()
    );
    scene.cluster.nodes()[0].kill9();

    let others = [scene.cluster.nodes()[1].url(), scene.replica.url()];
    // The same locks of another process, which does not wait for replicas.
    let elsewhere = Mutex::new(&Store::builder().cluster(others).unwrap(), "x").unwrap();
    eventually("the replica to serve", SOON, async || {
        elsewhere.try_lock(scene.keys[2 * LOCKS]).await.is_ok()
    })
    .await;
    assert!(scene.replica.cli(&["ROLE"]).starts_with("master"));
    for (key, guard) in &held {
        let second = elsewhere.try_lock(*key).await;
        assert!(guard.is_held(), "its ttl is not over");
        assert!(second.unwrap_err().is_refused(), "granted twice");
    }
    // What did not count is free.
    for key in later {
        assert!(elsewhere.try_lock(*key).await.is_ok());
    }
}

/// Its keys are at the old node still, which takes no new ones of its slot.
#[tokio::test]
async fn calls_are_durable_while_a_slot_is_on_its_way() {
    requires!(since_7_0());
    let scene = Scene::new().await;
    let bucket =
        TokenBucket::new(&durable(&scene.cluster), "x", Quota::per_hour(1).burst(100)).unwrap();
    let key = scene.keys[0];
    let named = format!("td:{{x:{key}}}:tat");
    assert!(bucket.allow(key).await.unwrap().is_admitted());
    let moved = SlotMove::begin(&scene.cluster, &named);
    let slot = moved.from.cli(&["CLUSTER", "KEYSLOT", &named]);
    eventually(
        "what was written beside the call to expire",
        SOON,
        async || moved.from.cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) == "1",
    )
    .await;
    for _ in 0..3 {
        let decision = bucket.allow(key).await;
        assert!(decision.is_ok(), "{decision:?}");
    }
    // It still waits for the replica.
    scene.replica.pause();
    let error = bucket.allow(key).await.unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("0 of 1 replicas"),
        "{error}"
    );
    scene.replica.resume();
}
