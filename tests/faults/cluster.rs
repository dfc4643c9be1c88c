//! One master of a Cluster is away, or slots are moved.

use std::time::Duration;

use deadpool_redis::Runtime;
use deadpool_redis::cluster::Config;
use tower_distributed::{BreakerState, Mutex, Quota, Store, TokenBucket};

use crate::support::cluster::RedisCluster;
use crate::support::eventually;
use crate::support::program::since_7_0;
use crate::support::redis_server::RedisServer;
use crate::woken::a_waiter_is_woken;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn keys_of_other_masters_are_not_concerned() {
    if !since_7_0() {
        return;
    }
    let cluster = RedisCluster::start().await;
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let pool = Config::from_urls(cluster.urls()).create_pool(Some(Runtime::Tokio1)).unwrap();
    check_others(&cluster, &Store::from(pool), 0).await;
    cluster.nodes()[0].restart().await;
    cluster.nodes()[0].cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    cluster.settled().await;
    check_others(&cluster, &Store::builder().cluster(cluster.urls()).unwrap(), 1).await;
}

async fn check_others(cluster: &RedisCluster, store: &Store, first: usize) {
    let bucket = TokenBucket::new(store, "shards", Quota::per_hour(1).burst(1000)).unwrap();
    let lost_port = cluster.nodes()[first].port();
    let (mut lost, mut healthy) = (Vec::new(), Vec::new());
    for key in 0..30 {
        bucket.allow(key).await.unwrap();
        let node = cluster.node_of(&format!("td:{{shards:{key}}}:tat"));
        if node.port() == lost_port { lost.push(key) } else { healthy.push(key) }
    }
    cluster.nodes()[first].kill9();
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

/// A slot on its way from one node to another.
struct Move<'a> {
    from: &'a RedisServer,
    to: &'a RedisServer,
    slot: String,
}

impl<'a> Move<'a> {
    /// Begins to move the slot of a key to another node.
    fn begin(cluster: &'a RedisCluster, key: &str) -> Self {
        let from = cluster.node_of(key);
        let to = cluster.nodes().iter().find(|node| node.port() != from.port()).unwrap();
        let slot = from.cli(&["CLUSTER", "KEYSLOT", key]);
        to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
        Self { from, to, slot }
    }

    fn end(self) {
        let Self { from, to, slot } = self;
        let keys: Vec<String> = from.query(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).unwrap();
        let port = to.port().to_string();
        if !keys.is_empty() {
            let move_keys = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            let keys = keys.iter().map(String::as_str);
            from.cli(&move_keys.into_iter().chain(keys).collect::<Vec<_>>());
        }
        for node in [to, from] {
            node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]);
        }
    }
}

fn id(node: &RedisServer) -> String {
    node.cli(&["CLUSTER", "MYID"])
}

fn has_told(node: &RedisServer, error: &str) -> bool {
    node.cli(&["INFO", "errorstats"]).contains(&format!("errorstat_{error}:"))
}

/// A key of which some parts exist is refused (TRYAGAIN) until its slot has moved; new keys are sent to the new node
/// (ASK), and so are all once it has moved (MOVED).
#[tokio::test]
async fn calls_to_a_slot_that_moves_are_served() {
    if !since_7_0() {
        return;
    }
    let cluster = RedisCluster::start().await;
    let pool = Config::from_urls(cluster.urls()).create_pool(Some(Runtime::Tokio1)).unwrap();
    let builder = || Store::builder().timeout(SOON);
    for (name, store) in
        [("urls", builder().cluster(cluster.urls()).unwrap()), ("pool", builder().pool(pool).unwrap())]
    {
        let mutex = Mutex::new(&store, name).unwrap();
        let key = format!("td:{{{name}:k}}:lock");
        let guard = mutex.lock("k").await.unwrap();
        let from = Move::begin(&cluster, &key);
        for node in cluster.nodes() {
            node.cli(&["CONFIG", "RESETSTAT"]);
        }
        let fence = guard.fence();
        let unlock = tokio::spawn(guard.unlock());
        eventually("the node to refuse", SOON, async || has_told(from.from, "TRYAGAIN")).await;
        from.end();
        assert!(unlock.await.unwrap().unwrap(), "it was held");
        let guard = mutex.lock("k").await.unwrap();
        assert!(guard.fence() > fence, "the new node knows the fences");
        assert!(guard.unlock().await.unwrap());

        let bucket = TokenBucket::new(&store, name, Quota::per_hour(1)).unwrap();
        let key = format!("td:{{{name}:new}}:tat");
        let from = Move::begin(&cluster, &key);
        assert!(bucket.allow("new").await.unwrap().is_admitted());
        assert!(has_told(from.from, "ASK"), "it was served by the old node");
        assert!(!bucket.allow("new").await.unwrap().is_admitted());
        from.end();
        assert!(!bucket.allow("new").await.unwrap().is_admitted());
    }
}

/// A master dies, and its replica takes its place: calls, the breaker and the subscription follow.
#[tokio::test]
async fn a_replica_takes_the_place_of_its_master() {
    if !since_7_0() {
        return;
    }
    let cluster = RedisCluster::start().await;
    let replica = cluster.replica_of(0).await;
    let store = Store::builder().cluster(cluster.urls()).unwrap();
    let bucket = TokenBucket::new(&store, "x", Quota::per_hour(1).burst(100_000)).unwrap();
    let is_lost =
        |key: &u64| cluster.node_of(&format!("td:{{x:{key}}}:tat")).port() == cluster.nodes()[0].port();
    let key = (0..).find(is_lost).unwrap();
    let other = (0..).find(|key| !is_lost(key)).unwrap();
    assert!(bucket.allow(key).await.is_ok() && bucket.allow(other).await.is_ok());
    cluster.nodes()[0].kill9();
    eventually("calls to fail", SOON, async || bucket.allow(key).await.is_err()).await;
    eventually("the replica to serve", SOON, async || bucket.allow(key).await.is_ok()).await;
    assert!(replica.cli(&["ROLE"]).starts_with("master"));
    for _ in 0..10 {
        assert!(bucket.allow(key).await.is_ok() && bucket.allow(other).await.is_ok());
    }
    assert_eq!(store.ping().await.unwrap().breaker(), BreakerState::Closed, "that of the dead master counts");

    // Waiters are woken from there, too.
    let elsewhere = Store::builder().cluster([replica.url()]).unwrap();
    a_waiter_is_woken(&store, &elsewhere, key, &replica).await;
}

/// Callers that come at once when nothing is known of the Cluster yet, over several connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_callers_wait_for_the_masters() {
    if !since_7_0() {
        return;
    }
    let cluster = RedisCluster::start().await;
    for _ in 0..5 {
        let store = Store::builder().connections(4).cluster(cluster.urls()).unwrap();
        let bucket = TokenBucket::new(&store, "first", Quota::per_second(1000)).unwrap();
        let calls = (0..50_u64).map(|key| {
            let bucket = bucket.clone();
            tokio::spawn(async move { bucket.allow(key).await })
        });
        for call in futures::future::join_all(calls).await {
            assert!(call.unwrap().unwrap().is_admitted());
        }
    }
}

/// A node that has left its cluster still answers, but names no masters.
#[tokio::test]
async fn a_node_that_was_removed_is_not_believed() {
    if !since_7_0() {
        return;
    }
    let cluster = RedisCluster::start().await;
    let alone = cluster.stranger().await;
    let urls = [alone.url(), cluster.nodes()[1].url()];
    for _ in 0..10 {
        let store = Store::builder().cluster(&urls).unwrap();
        let bucket = TokenBucket::new(&store, "x", Quota::per_second(1000)).unwrap();
        for key in 0..6_u64 {
            assert!(bucket.allow(key).await.unwrap().is_admitted());
        }
        store.ping().await.unwrap();
    }
    let lost = Store::builder().cluster([alone.url()]).unwrap();
    let bucket = TokenBucket::new(&lost, "x", Quota::per_second(1000)).unwrap();
    let error = bucket.allow("k").await.unwrap_err();
    assert!(error.to_string().contains("names no masters"), "{error}");
}

/// Many calls of one slot that is moved are all served by the node that is getting it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_served_while_its_slot_moves() {
    if !since_7_0() {
        return;
    }
    let cluster = RedisCluster::start().await;
    let store = Store::builder().timeout(SOON).connections(4).cluster(cluster.urls()).unwrap();
    let bucket = TokenBucket::new(&store, "crowd", Quota::per_hour(1).burst(1000)).unwrap();
    let moving = Move::begin(&cluster, "td:{crowd:k}:tat");
    let calls = (0..200).map(|_| {
        let bucket = bucket.clone();
        tokio::spawn(async move { bucket.allow("k").await })
    });
    for call in futures::future::join_all(calls).await {
        assert!(call.unwrap().unwrap().is_admitted());
    }
    moving.end();
    assert_eq!(bucket.peek("k").await.unwrap().remaining(), 800, "each was charged once");
}
