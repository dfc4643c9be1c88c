//! One master of a Cluster is away or slow: keys of the others are not concerned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tower_distributed::{Store, StoreBuilder, TokenBucket};

use crate::scene::{CALL, MACHINE, RECOVERY, is_served, wide_bucket};
use support::cluster::RedisCluster;
use support::eventually;
use support::pools::pool_of_cluster;
use support::program::since_7_0;
use support::requires;

/// For each master so many tasks. Those of a healthy one call with one key each, those of the ill one with many.
const TASKS: usize = 8;
const ILL_KEYS: usize = 50;

/// The default time-out of a call.
const TIMEOUT: Duration = Duration::from_millis(500);

/// How long rates are measured.
const SPAN: Duration = Duration::from_millis(1_200);

/// What tasks with keys of the same masters have met.
#[derive(Default)]
struct Met {
    answers: AtomicU64,
    failures: AtomicU64,
    longest_us: AtomicU64,
}

impl Met {
    /// What was met since the last look: answers, failures, and the longest call.
    fn take(&self) -> (u64, u64, Duration) {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        (take(&self.answers), take(&self.failures), Duration::from_micros(take(&self.longest_us)))
    }
}

/// Keys that a node serves.
fn keys_of(cluster: &RedisCluster, port: u16) -> impl Iterator<Item = u64> {
    (0..).filter(move |key| cluster.node_of(&format!("td:{{wide:{key}}}:tat")).port() == port)
}

struct Load {
    stop: Arc<AtomicBool>,
    ill: Arc<Met>,
    healthy: Arc<Met>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Tasks with keys of all masters; those of the first node are the ill ones.
    async fn start(cluster: &RedisCluster, bucket: &TokenBucket) -> Self {
        let (stop, ill, healthy) = <(Arc<AtomicBool>, Arc<Met>, Arc<Met>)>::default();
        let mut tasks = Vec::new();
        for node in cluster.nodes() {
            let is_ill = node.port() == cluster.nodes()[0].port();
            let keys = if is_ill { ILL_KEYS } else { 1 };
            let mut owned = keys_of(cluster, node.port());
            for _ in 0..TASKS {
                let keys: Vec<_> = owned.by_ref().take(keys).collect();
                let (bucket, stop) = (bucket.clone(), stop.clone());
                let met = if is_ill { ill.clone() } else { healthy.clone() };
                tasks.push(tokio::spawn(async move {
                    let mut keys = keys.into_iter().cycle();
                    while !stop.load(Ordering::Relaxed) {
                        let began = Instant::now();
                        let outcome = bucket.allow(keys.next().unwrap()).await;
                        let took = u64::try_from(began.elapsed().as_micros()).unwrap();
                        met.longest_us.fetch_max(took, Ordering::Relaxed);
                        if is_served(&outcome) {
                            met.answers.fetch_add(1, Ordering::Relaxed);
                        } else {
                            met.failures.fetch_add(1, Ordering::Relaxed);
                            // Callers that are answered at once are not to take the processors.
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    }
                }));
            }
        }
        Self { stop, ill, healthy, tasks }
    }

    /// What the tasks with healthy keys meet while the time passes.
    async fn measure(&self) -> (u64, u64, Duration) {
        self.healthy.take();
        tokio::time::sleep(SPAN).await;
        self.healthy.take()
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            tokio::time::timeout(CALL, task).await.expect("a call hangs").unwrap();
        }
    }
}

/// How the store was made.
#[derive(Clone, Copy)]
enum By {
    Pool,
    Urls,
}

async fn scene(by: By) -> (RedisCluster, TokenBucket) {
    let cluster = RedisCluster::start().await;
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let store = match by {
        By::Pool => {
            let pool = pool_of_cluster(cluster.urls());
            cluster.urls().iter().fold(Store::builder(), StoreBuilder::wakeups).pool(pool)
        }
        By::Urls => Store::builder().cluster(cluster.urls()),
    };
    let bucket = wide_bucket(&store.unwrap());
    (cluster, bucket)
}

/// Everything that is wrong with what the healthy tasks met, beside what they met before.
fn assert_unaffected(before: (u64, u64, Duration), after: (u64, u64, Duration)) {
    let (answers, failures, longest) = after;
    assert!(
        2 * answers > before.0 && failures == 0 && longest <= TIMEOUT,
        "healthy keys: {} answers before, then {answers}; {failures} failures; the longest call took {longest:?}",
        before.0,
    );
}

/// Defect 6: of 9 972 calls of a bare client 65 were made.
async fn a_lost_master_affects_its_own_keys_only(by: By, lose: impl FnOnce(&RedisCluster)) -> RedisCluster {
    let (cluster, bucket) = scene(by).await;
    let _turn = MACHINE.write().await;
    let load = Load::start(&cluster, &bucket).await;
    let busy = || load.healthy.answers.load(Ordering::Relaxed) > 1_000;
    eventually("the load to run", RECOVERY, async || busy()).await;
    let before = load.measure().await;
    lose(&cluster);
    let after = load.measure().await;
    // The first master is away indeed.
    let (_, failures, _) = load.ill.take();
    assert!(failures > 0, "nobody has met the loss");
    load.end().await;
    assert_unaffected(before, after);
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_affects_its_own_keys_only() {
    requires!(since_7_0());
    for by in [By::Pool, By::Urls] {
        a_lost_master_affects_its_own_keys_only(by, |cluster| cluster.nodes()[0].kill9()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_master_affects_its_own_keys_only() {
    requires!(since_7_0());
    for by in [By::Pool, By::Urls] {
        let cluster = a_lost_master_affects_its_own_keys_only(by, |cluster| cluster.nodes()[0].pause()).await;
        cluster.nodes()[0].resume();
    }
}

/// Defect 6: a batch answered nobody before its slowest call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_master_affects_its_own_keys_only() {
    requires!(since_7_0());
    for by in [By::Pool, By::Urls] {
        a_slow_master(by).await;
    }
}

async fn a_slow_master(by: By) {
    let (cluster, bucket) = scene(by).await;
    let _turn = MACHINE.write().await;
    let load = Load::start(&cluster, &bucket).await;
    let busy = || load.healthy.answers.load(Ordering::Relaxed) > 1_000;
    eventually("the load to run", RECOVERY, async || busy()).await;
    let before = load.measure().await;

    let over = AtomicBool::new(false);
    let after = std::thread::scope(|scope| {
        // Most of the time it stands still, never so long that a call to it would time out.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                cluster.nodes()[0].pause();
                std::thread::sleep(Duration::from_millis(200));
                cluster.nodes()[0].resume();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let after =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(load.measure()));
        over.store(true, Ordering::Relaxed);
        after
    });
    let (answers, failures, longest) = load.ill.take();
    load.end().await;
    assert!(longest >= Duration::from_millis(150), "the master was not slow: {longest:?}");
    assert_unaffected(before, after);
    // Nobody waits for somebody else's call, and the slow master is not away.
    assert!(after.2 < Duration::from_millis(150), "a call to a healthy master took {:?}", after.2);
    assert_eq!(failures, 0, "calls to the slow master failed, {answers} were answered");
}
