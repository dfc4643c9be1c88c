//! One master of a Cluster is away or slow: keys of the others are not concerned. What they lose of their throughput is the
//! figure `cluster-healthy-share`.

use std::time::Duration;

use futures::future::join_all;
use tokio::task::JoinHandle;
use tower_distributed::{Error, Store, StoreBuilder, TokenBucket};

use crate::scene::{is_served, wide_bucket};
use support::cluster::RedisCluster;
use support::patient::PATIENCE;
use support::pools::pool_of_cluster;
use support::program::since_7_0;
use support::{patient, requires};

/// After so long a call to a master that does not answer fails. Healthy ones answer earlier.
const OUTAGE: Duration = Duration::from_secs(5);

/// How often calls to all masters are made while one is ill.
const ROUNDS: usize = 40;

/// Keys that a node serves.
fn keys_of(cluster: &RedisCluster, port: u16) -> impl Iterator<Item = u64> {
    (0..).filter(move |key| cluster.node_of(&format!("td:{{wide:{key}}}:tat")).port() == port)
}

/// A Cluster whose first master is going to be ill.
struct Scene {
    cluster: RedisCluster,
    /// Keys of the first master, and of the others.
    ill: Vec<u64>,
    healthy: Vec<u64>,
}

impl Scene {
    async fn set() -> Self {
        let cluster = RedisCluster::start().await;
        for node in cluster.nodes() {
            node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
            // On a busy machine, masters that are well do not hear from each other for a while, and then refuse calls.
            node.cli(&["CONFIG", "SET", "cluster-node-timeout", "600000"]);
        }
        let [first, others @ ..] = cluster.nodes() else {
            panic!("there are masters")
        };
        let ill = keys_of(&cluster, first.port()).take(ROUNDS).collect();
        let healthy = others
            .iter()
            .flat_map(|node| keys_of(&cluster, node.port()).take(4))
            .collect();
        Self {
            cluster,
            ill,
            healthy,
        }
    }

    /// A store by a pool and one by URLs, with connections to all masters.
    async fn stores(&self, timeout: Duration) -> [TokenBucket; 2] {
        let urls = self.cluster.urls();
        let builder = || patient!().timeout(timeout).queue_timeout(timeout);
        let by_pool = urls
            .iter()
            .fold(builder(), StoreBuilder::wakeups)
            .pool(pool_of_cluster(urls.clone()));
        let stores = [by_pool.unwrap(), builder().cluster(&urls).unwrap()];
        let buckets = stores.map(|store| wide_bucket(&store));
        for bucket in &buckets {
            for key in self.ill.iter().chain(&self.healthy) {
                assert!(is_served(&bucket.allow(*key).await));
            }
        }
        buckets
    }

    /// Calls with keys of the first master, which is ill, each followed at once by calls with keys of the others, which are
    /// served. Returns the first ones.
    async fn others_are_served(
        &self,
        bucket: &TokenBucket,
    ) -> Vec<JoinHandle<Result<bool, Error>>> {
        let mut calls = Vec::new();
        for key in self.ill.iter().copied() {
            let ill = bucket.clone();
            calls.push(tokio::spawn(async move {
                Ok(ill.allow(key).await?.is_admitted())
            }));
            for outcome in join_all(self.healthy.iter().map(|key| bucket.allow(*key))).await {
                assert!(
                    is_served(&outcome),
                    "a call to a healthy master: {outcome:?}"
                );
            }
        }
        calls
    }
}

/// Defect 6: a batch answered nobody before its slowest call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_ill_affects_its_own_keys_only() {
    requires!(since_7_0());
    let scene = Scene::set().await;
    let first = &scene.cluster.nodes()[0];
    let patient = scene.stores(PATIENCE).await;
    let (others, last) = (scene.stores(OUTAGE).await, scene.stores(OUTAGE).await);

    // One that is slow is not away.
    first.pause();
    let slow = join_all(patient.iter().map(|bucket| scene.others_are_served(bucket))).await;
    assert!(
        slow.iter().flatten().all(|call| !call.is_finished()),
        "the master was not slow"
    );
    first.resume();
    for call in slow.into_iter().flatten() {
        assert!(call.await.unwrap().unwrap());
    }

    // Calls to one that stands still end by their time-outs. When the first have failed, the breaker is open.
    first.pause();
    for _ in 0..2 {
        for calls in join_all(others.iter().map(|bucket| scene.others_are_served(bucket))).await {
            let last = calls.into_iter().next_back().unwrap();
            assert!(last.await.unwrap().unwrap_err().is_unavailable());
        }
    }
    first.resume();

    first.kill9();
    for bucket in &last {
        for call in scene.others_are_served(bucket).await {
            assert!(call.await.unwrap().unwrap_err().is_unavailable());
        }
    }
}
