//! One of three masters of a Redis Cluster is killed: what becomes of calls for keys of the other two.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use deadpool_redis::Runtime;
use deadpool_redis::cluster::Config;
use tokio::task::JoinHandle;
use tower_distributed::{Quota, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::{figure, note};
use crate::common::stats::median;
use support::cluster::RedisCluster;

const NAME: &str = "cluster-healthy-share";
const SPAN: Duration = Duration::from_secs(2);
/// Callers per master, each with a key of its own. Those of the master that is killed go on too, as users would.
const CALLERS: usize = 64;

#[derive(Default)]
struct Calls {
    stop: AtomicBool,
    served: AtomicU32,
    failed: AtomicU32,
    /// What the first that failed was told.
    outage: OnceLock<String>,
}

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    let cluster = bench.runtime.block_on(RedisCluster::start());
    for node in cluster.nodes() {
        // Or the healthy ones would stop too when they find that a master is gone.
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let shares: Vec<f64> = (0..bench.settings.rounds)
        .map(|_| round(bench, &cluster))
        .collect();
    figure(
        NAME,
        "calls served for keys of two masters after the third was killed ÷ before",
        median(shares),
    );
}

fn round(bench: &Bench, cluster: &RedisCluster) -> f64 {
    let doomed = &cluster.nodes()[2];
    let pool = Config::from_urls(cluster.urls())
        .create_pool(Some(Runtime::Tokio1))
        .unwrap();
    let quota = Quota::per_second(1_000_000).burst(1_000_000);
    let bucket = TokenBucket::new(&Store::from(pool), "bench", quota).unwrap();
    let (healthy, ill) = (Arc::new(Calls::default()), Arc::new(Calls::default()));
    let mut tasks = Vec::new();
    for node in cluster.nodes() {
        let calls = if node.port() == doomed.port() {
            &ill
        } else {
            &healthy
        };
        let keys = (0..).map(|i| format!("key-{i:016}"));
        let keys = keys.filter(|key| {
            cluster.node_of(&format!("td:{{bench:{key}}}:tat")).port() == node.port()
        });
        for key in keys.take(CALLERS) {
            tasks.push(
                bench
                    .runtime
                    .spawn(call(bucket.clone(), key, calls.clone())),
            );
        }
    }
    thread::sleep(SPAN);
    let ([before, _], _) = (watch(&healthy), ill.take());
    doomed.kill9();
    let [after, failed] = watch(&healthy);
    let [ill_served, ill_failed] = ill.take();
    let outage = healthy.outage.get().cloned();
    stop(bench, &[healthy, ill], tasks);

    note(format!(
        "{CALLERS} callers per master; for keys of two healthy ones {before} served in the {SPAN:?} before the third was \
         killed, {after} in those after it, {failed} failed; for its own keys {ill_served} served, {ill_failed} failed"
    ));
    if let Some(outage) = outage {
        note(format!(
            "The first call for a healthy one that failed: {outage}"
        ));
    }
    bench.runtime.block_on(async {
        doomed.restart().await;
        doomed.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        cluster.settled().await;
    });
    f64::from(after) / f64::from(before)
}

/// What was served and what failed for a while.
fn watch(calls: &Calls) -> [u32; 2] {
    calls.take();
    thread::sleep(SPAN);
    calls.take()
}

fn stop(bench: &Bench, calls: &[Arc<Calls>], tasks: Vec<JoinHandle<()>>) {
    calls
        .iter()
        .for_each(|calls| calls.stop.store(true, Ordering::Relaxed));
    tasks
        .into_iter()
        .for_each(|task| bench.runtime.block_on(task).unwrap());
}

impl Calls {
    /// What was served and what failed since the last look.
    fn take(&self) -> [u32; 2] {
        [&self.served, &self.failed].map(|count| count.swap(0, Ordering::Relaxed))
    }
}

async fn call(bucket: TokenBucket, key: String, calls: Arc<Calls>) {
    while !calls.stop.load(Ordering::Relaxed) {
        let outcome = bucket.allow(&*key).await;
        let count = if outcome.is_ok() {
            &calls.served
        } else {
            &calls.failed
        };
        count.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = outcome {
            calls.outage.get_or_init(|| error.to_string());
            // Refused at once while the breaker is open: a caller that does not stop would take a core from the others.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
