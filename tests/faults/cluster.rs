//! One master of a Cluster is away, or slots are moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tower_distributed::{BreakerState, Credentials, Quota, Store, TokenBucket};

use crate::woken::a_waiter_is_woken;
use support::cluster::RedisCluster;
use support::eventually;
use support::program::since_7_0;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::replicated::ReplicatedCluster;
use support::requires;
use support::slot_move::SlotMove;

const SOON: Duration = Duration::from_secs(20);

/// A master dies, and its replica takes its place: calls, the breaker and the subscription follow.
#[tokio::test]
async fn a_replica_takes_the_place_of_its_master() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let replica = cluster.replica_of(0).await;
    let store = Store::builder().cluster(cluster.urls()).unwrap();
    let bucket = TokenBucket::new(&store, "x", Quota::per_hour(1).burst(100_000)).unwrap();
    let is_lost = |key: &u64| {
        cluster.node_of(&format!("td:{{x:{key}}}:tat")).port() == cluster.nodes()[0].port()
    };
    let key = (0..).find(is_lost).unwrap();
    let other = (0..).find(|key| !is_lost(key)).unwrap();
    assert!(bucket.allow(key).await.is_ok() && bucket.allow(other).await.is_ok());
    cluster.nodes()[0].kill9();
    eventually("calls to fail", SOON, async || {
        bucket.allow(key).await.is_err()
    })
    .await;
    eventually("the replica to serve", SOON, async || {
        bucket.allow(key).await.is_ok()
    })
    .await;
    assert!(replica.cli(&["ROLE"]).starts_with("master"));
    for _ in 0..10 {
        assert!(bucket.allow(key).await.is_ok() && bucket.allow(other).await.is_ok());
    }
    assert!(store.ping().await.is_ok());
    assert_eq!(
        store.stats().breaker,
        BreakerState::Closed,
        "that of the dead master counts"
    );

    // Waiters are woken from there, too.
    let elsewhere = Store::builder().cluster([replica.url()]).unwrap();
    a_waiter_is_woken(&store, &elsewhere, key, &replica).await;
}

/// All masters are asked at the same time, so that a readiness probe is answered in the time of one call.
#[tokio::test]
async fn a_ping_takes_no_longer_where_more_masters_are_away() {
    requires!(since_7_0());
    const TIMEOUT: Duration = Duration::from_secs(4);
    let cluster = RedisCluster::start().await;
    let builder = Store::builder().timeout(TIMEOUT);
    let store = builder.cluster(cluster.urls()).unwrap();
    let bucket = TokenBucket::new(&store, "x", Quota::per_hour(1).burst(100_000)).unwrap();
    for key in 0..32_u64 {
        assert!(
            bucket.allow(key).await.is_ok(),
            "connections to all masters"
        );
    }
    cluster.nodes().iter().for_each(RedisServer::pause);
    let began = Instant::now();
    assert!(store.ping().await.unwrap_err().is_unavailable());
    assert!(began.elapsed() < 2 * TIMEOUT, "{:?}", began.elapsed());
    cluster.nodes()[2].resume();
    eventually("one master to be enough", SOON, async || {
        store.ping().await.is_ok()
    })
    .await;
    cluster.nodes().iter().for_each(RedisServer::resume);
}

/// A replica takes over from a master that lives on, and keeps no connection: each failover would leave another one. Calls
/// are on their way to it all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_a_former_master_are_closed() {
    requires!(since_7_0());
    // The crowd may keep a node from the others for longer than 1.5 s, and it is not dead then.
    let replicated = ReplicatedCluster::start("cluster-node-timeout 20000").await;
    let store = Store::builder()
        .timeout(SOON)
        .cluster(replicated.cluster.urls())
        .unwrap();
    let bucket = TokenBucket::new(&store, "former", Quota::per_second(1).burst(1_000_000)).unwrap();
    // On a busy machine the servers themselves may take the Cluster for down for a while.
    let was_down = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for key in 0..64_u64 {
        let (bucket, was_down) = (bucket.clone(), Arc::clone(&was_down));
        callers.spawn(async move {
            loop {
                let Err(error) = bucket.allow(key).await else {
                    continue;
                };
                was_down.fetch_or(error.to_string().contains("CLUSTERDOWN"), Ordering::Relaxed);
                assert!(was_down.load(Ordering::Relaxed), "{error}");
                tokio::task::yield_now().await;
            }
        });
    }
    for round in 0..4 {
        let former = replicated.masters()[round % 3];
        // One is that of the question.
        let connections = || {
            former
                .cli(&["CLIENT", "LIST", "TYPE", "normal"])
                .lines()
                .count()
                - 1
        };
        eventually("a connection to the master", SOON, async || {
            connections() > 0
        })
        .await;
        replicated.fail_over(round).await;
        eventually(
            "the former master to have no connection",
            SOON,
            async || connections() == 0,
        )
        .await;
    }
    assert!(callers.try_join_next().is_none(), "a call has failed");
}

/// Callers that come at once when nothing is known of the Cluster yet, over several connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_callers_wait_for_the_masters() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    for _ in 0..5 {
        let store = Store::builder()
            .connections(4)
            .cluster(cluster.urls())
            .unwrap();
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

/// A runtime that stands still while it asks for the masters concerns no other.
#[test]
fn a_runtime_that_stands_still_hides_no_masters() {
    requires!(since_7_0());
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (still, moving) = (runtime(), runtime());
    let cluster = moving.block_on(RedisCluster::start());
    let proxy = moving.block_on(FaultProxy::start(cluster.nodes()[0].port()));
    let store = Store::builder().cluster([proxy.url()]).unwrap();
    let bucket = TokenBucket::new(&store, "x", Quota::per_second(1000)).unwrap();
    proxy.stall();
    still.block_on(async {
        let bucket = bucket.clone();
        tokio::spawn(async move { bucket.allow("k").await });
        eventually("a node to be asked", SOON, async || proxy.held_back() > 0).await;
    });
    proxy.heal();
    let served = async || bucket.allow("k").await.is_ok();
    moving.block_on(eventually("a call to be served", SOON, served));
}

/// What the caller no longer waits for must not hold up the next ones.
#[tokio::test]
async fn a_look_up_that_hangs_ends_with_the_time_to_connect() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let asked = Arc::new(AtomicBool::new(false));
    let credentials = move || {
        let is_first = !asked.swap(true, Ordering::Relaxed);
        async move {
            if is_first {
                std::future::pending::<()>().await;
            }
            Ok::<_, std::io::Error>(Credentials::new("default", ""))
        }
    };
    let store = Store::builder()
        .credentials(credentials)
        .connect_timeout(Duration::from_millis(500));
    let store = store.cluster([&cluster.urls()[0]]).unwrap();
    let bucket = TokenBucket::new(&store, "x", Quota::per_second(1000)).unwrap();
    eventually("a call to be served", SOON, async || {
        bucket.allow("k").await.is_ok()
    })
    .await;
}

/// A slot moves to a node that is down: its failures count there, and not at the node that sends calls there.
#[tokio::test]
async fn a_node_that_is_down_and_gets_a_slot_has_a_breaker() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let store = Store::builder().cluster(cluster.urls()).unwrap();
    let bucket = TokenBucket::new(&store, "x", Quota::per_hour(1).burst(1000)).unwrap();
    let part = |key: u64| format!("td:{{x:{key}}}:tat");
    let moving = SlotMove::begin(&cluster, &part(0));
    let port = moving.from.port();
    let other = (1..)
        .find(|key| cluster.node_of(&part(*key)).port() == port)
        .unwrap();
    assert!(bucket.allow(0).await.is_ok() && bucket.allow(other).await.is_ok());
    moving.to.kill9();
    let mut texts = Vec::new();
    for _ in 0..10 {
        texts.push(bucket.allow(0).await.unwrap_err().to_string());
        assert!(
            bucket.allow(other).await.is_ok(),
            "the node that sends calls there is up"
        );
    }
    assert!(
        texts
            .iter()
            .any(|text| text.contains("the breaker is open")),
        "{texts:?}"
    );
    assert!(store.ping().await.is_ok());
    assert_ne!(store.stats().breaker, BreakerState::Closed);
}
