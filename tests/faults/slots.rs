//! Slots of a Cluster move from one node to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tower_distributed::{Mutex, Quota, RwLock, Store, TokenBucket};

use support::cluster::RedisCluster;
use support::eventually;
use support::patient;
use support::pools::pool_of_cluster;
use support::program::since_7_0;
use support::redis_server::RedisServer;
use support::replicated::ReplicatedCluster;
use support::requires;
use support::slot_move::SlotMove;

const SOON: Duration = Duration::from_secs(20);

fn has_told(node: &RedisServer, error: &str) -> bool {
    node.cli(&["INFO", "errorstats"])
        .contains(&format!("errorstat_{error}:"))
}

/// A key of which some parts exist is refused (TRYAGAIN) until its slot has moved; new keys are sent to the new node
/// (ASK), and so are all once it has moved (MOVED).
#[tokio::test]
async fn calls_to_a_slot_that_moves_are_served() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let pool = pool_of_cluster(cluster.urls());
    let builder = || Store::builder().timeout(SOON);
    for (name, store) in [
        ("urls", builder().cluster(cluster.urls()).unwrap()),
        ("pool", builder().pool(pool).unwrap()),
    ] {
        let mutex = Mutex::new(&store, name).unwrap();
        let key = format!("td:{{{name}:k}}:lock");
        let guard = mutex.lock("k").await.unwrap();
        let from = SlotMove::begin(&cluster, &key);
        for node in cluster.nodes() {
            node.cli(&["CONFIG", "RESETSTAT"]);
        }
        let fence = guard.fence();
        let unlock = tokio::spawn(guard.unlock());
        eventually("the node to refuse", SOON, async || {
            has_told(from.from, "TRYAGAIN")
        })
        .await;
        from.end();
        assert!(unlock.await.unwrap().unwrap(), "it was held");
        let guard = mutex.lock("k").await.unwrap();
        assert!(guard.fence() > fence, "the new node knows the fences");
        assert!(guard.unlock().await.unwrap());

        let bucket = TokenBucket::new(&store, name, Quota::per_hour(1)).unwrap();
        let key = format!("td:{{{name}:new}}:tat");
        let from = SlotMove::begin(&cluster, &key);
        assert!(bucket.allow("new").await.unwrap().is_admitted());
        assert!(has_told(from.from, "ASK"), "it was served by the old node");
        assert!(!bucket.allow("new").await.unwrap().is_admitted());
        from.end();
        assert!(!bucket.allow("new").await.unwrap().is_admitted());
    }
}

/// A call that waits for replicas leaves nothing at the old node that the new one has too: its slot could not be moved.
#[tokio::test]
async fn a_slot_with_keys_of_durable_calls_can_be_moved() {
    requires!(since_7_0());
    let replicated = ReplicatedCluster::start("").await;
    let cluster = &replicated.cluster;
    let builder = Store::builder()
        .timeout(SOON)
        .replicas(1, Duration::from_secs(1));
    let bucket = TokenBucket::new(
        &builder.cluster(cluster.urls()).unwrap(),
        "durable",
        Quota::per_second(100),
    )
    .unwrap();
    assert!(bucket.allow("k").await.unwrap().is_admitted());
    let key = "td:{durable:k}:tat";
    let node = cluster.node_of(key);
    eventually("the bucket to be full", SOON, async || {
        node.query(&["EXISTS", key]) == Ok(0)
    })
    .await;
    let moving = SlotMove::begin(cluster, key);
    assert!(bucket.allow("k").await.unwrap().is_admitted());
    assert!(
        has_told(moving.from, "ASK"),
        "it was served by the old node"
    );
    moving.end();
    assert!(bucket.allow("k").await.unwrap().is_admitted());
}

/// A script that removes a key and asks for it again is refused by a node that is giving its slot away.
#[tokio::test]
async fn leases_are_handed_on_in_a_slot_that_moves() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let store = || {
        Store::builder()
            .timeout(SOON)
            .cluster(cluster.urls())
            .unwrap()
    };
    let [near, far] = [
        RwLock::new(&store(), "moves").unwrap(),
        RwLock::new(&store(), "moves").unwrap(),
    ];
    let part = |part| format!("td:{{moves:k}}:rw:{part}");
    let node = cluster.node_of(&part("waiters"));
    let guard = near.write("k").await.unwrap();
    // Each part of the key exists, so the node runs the script.
    let (next, readers) = (far.clone(), far.clone());
    let reader = tokio::spawn(async move { readers.read("k").await?.release().await });
    let writer = tokio::spawn(async move { next.write("k").await?.release().await });
    eventually("both to wait", SOON, async || {
        node.query(&["ZCARD", &part("waiters")]) == Ok(2)
    })
    .await;
    let moving = SlotMove::begin(&cluster, &part("waiters"));
    node.cli(&["CONFIG", "RESETSTAT"]);
    let release = tokio::spawn(guard.release());
    eventually("the node to refuse", SOON, async || has_told(node, "ERR")).await;
    moving.end();
    assert!(
        release.await.unwrap().expect("the slot has moved"),
        "it was held"
    );
    let in_time = tokio::time::timeout(SOON, async { tokio::join!(reader, writer) });
    let (reader, writer) = in_time.await.expect("nobody wakes the waiters");
    assert!(
        reader.unwrap().unwrap() && writer.unwrap().unwrap(),
        "they lost their leases"
    );
}

/// How many calls a node has got, also those that it has sent on.
fn asked(node: &RedisServer) -> String {
    let stats = node.cli(&["INFO", "commandstats"]);
    stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_fcall"))
        .collect()
}

/// A node that takes over slots under load, gives them back, and leaves the cluster. No call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_and_leaves_under_load() {
    const KEYS: u64 = 12;
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let store = patient!().cluster(cluster.urls()).unwrap();
    let bucket = TokenBucket::new(&store, "join", Quota::per_second(1_000_000)).unwrap();
    let (stop, served) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let callers = (0..KEYS).map(|key| {
        let (bucket, stop, served) = (bucket.clone(), stop.clone(), served.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let decision = bucket
                    .allow(key)
                    .await
                    .unwrap_or_else(|error| panic!("key {key}: {error}"));
                assert!(decision.is_admitted());
                served.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let more = async || {
        let before = served.load(Ordering::Relaxed);
        eventually("more calls to be served", SOON, async || {
            served.load(Ordering::Relaxed) > before + 100
                || callers.iter().any(|caller| caller.is_finished())
        })
        .await;
    };
    more().await;

    let joined = cluster.stranger().await;
    cluster.admit(&joined).await;
    let names = (0..KEYS).map(|key| format!("td:{{join:{key}}}:tat"));
    let names: Vec<_> = names.collect();
    let nodes: Vec<&RedisServer> = cluster.nodes().iter().collect();
    for name in &names {
        SlotMove::between(cluster.node_of(name), &joined, name).end_at(&nodes);
        more().await;
    }
    assert_eq!(
        joined.query(&["DBSIZE"]),
        Ok(KEYS),
        "it has all of the keys"
    );

    for name in &names {
        // With its last slot it becomes a replica, and learns from the others whose.
        SlotMove::between(&joined, cluster.node_of(name), name).end_at(&nodes);
        more().await;
    }
    // Nobody asks it any more, even only to be sent on.
    eventually("all callers to know who has the slots", SOON, async || {
        let before = asked(&joined);
        more().await;
        asked(&joined) == before
    })
    .await;
    cluster.dismiss(joined).await;
    for _ in 0..5 {
        more().await;
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
}

/// The node refuses each attempt to ask, so nobody can say that the lock is held.
#[tokio::test]
async fn a_wait_for_a_half_moved_slot_ends_as_an_outage() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let store = || {
        Store::builder()
            .timeout(SOON)
            .cluster(cluster.urls())
            .unwrap()
    };
    let wait = Duration::from_secs(1);
    let (near, far) = (
        store(),
        Mutex::builder()
            .max_wait(wait)
            .strict_fifo()
            .build(&store(), "half")
            .unwrap(),
    );
    let guard = Mutex::new(&near, "half").unwrap().lock("k").await.unwrap();
    let refused = far.lock("k").await.unwrap_err();
    assert!(refused.is_waited_too_long(), "{refused}");
    let moving = SlotMove::begin(&cluster, "td:{half:k}:lock");
    for mutex in [
        far,
        Mutex::builder()
            .max_wait(wait)
            .build(&store(), "half")
            .unwrap(),
    ] {
        let error = mutex.lock("k").await.unwrap_err();
        assert!(
            error.is_unavailable() && error.to_string().contains("TRYAGAIN"),
            "{error}"
        );
    }
    // Without a wait, the call is sent again until the timeout of the store is over.
    let timeout = Duration::from_millis(500);
    let quick = Store::builder()
        .timeout(timeout)
        .cluster(cluster.urls())
        .unwrap();
    let (mutex, began) = (Mutex::new(&quick, "half").unwrap(), Instant::now());
    let outcome = tokio::time::timeout(SOON, mutex.try_lock("k"))
        .await
        .expect("it has no end");
    let error = outcome.unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("TRYAGAIN"),
        "{error}"
    );
    assert!(began.elapsed() > timeout / 3, "{:?}", began.elapsed());
    moving.end();
    assert!(guard.unlock().await.unwrap());
    // What a node refused some time ago says nothing about a lock that is held now.
    let _held = Mutex::new(&near, "half").unwrap().lock("k").await.unwrap();
    let mutex = Mutex::builder()
        .max_wait(wait)
        .build(&store(), "half")
        .unwrap();
    let error = mutex.lock("k").await.unwrap_err();
    assert!(error.is_waited_too_long(), "{error}");
}
