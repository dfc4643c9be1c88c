//! One master of a Cluster is away or slow: keys of the others are not concerned. What they lose of their throughput is the
//! figure `cluster-healthy-share`.

use std::time::Duration;

use futures::future::join_all;
use tokio::task::JoinHandle;
use tower_distributed::token_bucket::Decision;
use tower_distributed::{Error, Store, StoreBuilder, TokenBucket};

use crate::scene::{MACHINE, is_served, wide_bucket};
use support::cluster::RedisCluster;
use support::patient;
use support::patient::PATIENCE;
use support::pools::pool_of_cluster;
use support::program::since_7_0;
use support::requires;

/// After so long a call to a master that is away fails.
const OUTAGE: Duration = Duration::from_secs(5);

/// How often calls to all masters are made while one is ill.
const ROUNDS: usize = 40;

/// Keys that a node serves.
fn keys_of(cluster: &RedisCluster, port: u16) -> impl Iterator<Item = u64> {
    (0..).filter(move |key| cluster.node_of(&format!("td:{{wide:{key}}}:tat")).port() == port)
}

/// How the store was made.
#[derive(Clone, Copy)]
enum By {
    Pool,
    Urls,
}

/// A Cluster whose first master is going to be ill.
struct Scene {
    cluster: RedisCluster,
    bucket: TokenBucket,
    /// Keys of the first master, and of the others.
    ill: Vec<u64>,
    healthy: Vec<u64>,
}

async fn scene(by: By, timeout: Duration) -> Scene {
    let cluster = RedisCluster::start().await;
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let patient = patient!().timeout(timeout).queue_timeout(timeout);
    let store = match by {
        By::Pool => {
            let pool = pool_of_cluster(cluster.urls());
            cluster.urls().iter().fold(patient, StoreBuilder::wakeups).pool(pool)
        }
        By::Urls => patient.cluster(cluster.urls()),
    };
    let bucket = wide_bucket(&store.unwrap());
    let [first, others @ ..] = cluster.nodes() else { panic!("there are masters") };
    let ill: Vec<_> = keys_of(&cluster, first.port()).take(ROUNDS).collect();
    let healthy: Vec<_> = others.iter().flat_map(|node| keys_of(&cluster, node.port()).take(4)).collect();
    // Connections to all masters, and scripts.
    for key in ill.iter().chain(&healthy) {
        assert!(is_served(&bucket.allow(*key).await));
    }
    Scene { cluster, bucket, ill, healthy }
}

type Call = JoinHandle<Result<Decision, Error>>;

impl Scene {
    /// Calls with keys of the first master, which is ill, each followed at once by calls with keys of the others, which are
    /// served. Returns the first ones.
    async fn others_are_served(&self) -> Vec<Call> {
        let mut calls = Vec::new();
        for key in self.ill.iter().copied() {
            let bucket = self.bucket.clone();
            calls.push(tokio::spawn(async move { bucket.allow(key).await }));
            for outcome in join_all(self.healthy.iter().map(|key| self.bucket.allow(*key))).await {
                assert!(is_served(&outcome), "a call to a healthy master: {outcome:?}");
            }
        }
        calls
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_affects_its_own_keys_only() {
    requires!(since_7_0());
    let _turn = MACHINE.read().await;
    for by in [By::Pool, By::Urls] {
        let scene = scene(by, OUTAGE).await;
        scene.cluster.nodes()[0].kill9();
        for call in scene.others_are_served().await {
            assert!(call.await.unwrap().unwrap_err().is_unavailable());
        }
    }
}

/// Its calls end by their time-outs, and its breaker opens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_master_affects_its_own_keys_only() {
    requires!(since_7_0());
    let _turn = MACHINE.read().await;
    for by in [By::Pool, By::Urls] {
        let scene = scene(by, OUTAGE).await;
        scene.cluster.nodes()[0].pause();
        // When the first calls have failed, the breaker is open.
        for _ in 0..2 {
            let calls = scene.others_are_served().await;
            let last = calls.into_iter().next_back().unwrap();
            assert!(last.await.unwrap().unwrap_err().is_unavailable());
        }
        scene.cluster.nodes()[0].resume();
    }
}

/// Defect 6: a batch answered nobody before its slowest call. Nobody waits for somebody else's call, and a slow master is not
/// away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_master_affects_its_own_keys_only() {
    requires!(since_7_0());
    let _turn = MACHINE.read().await;
    for by in [By::Pool, By::Urls] {
        let scene = scene(by, PATIENCE).await;
        scene.cluster.nodes()[0].pause();
        let calls = scene.others_are_served().await;
        assert!(calls.iter().all(|call| !call.is_finished()), "the master was not slow");
        scene.cluster.nodes()[0].resume();
        for call in calls {
            let outcome = tokio::time::timeout(PATIENCE, call).await.expect("a call hangs").unwrap();
            assert!(is_served(&outcome), "a call to the slow master: {outcome:?}");
        }
    }
}
