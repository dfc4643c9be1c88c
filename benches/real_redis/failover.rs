//! A master dies, and a replica takes its place: the time until a call succeeds again, beside a bare client of redis-rs
//! that lives through the same failover.

use std::time::{Duration, Instant};

use deadpool_redis::redis::cluster::ClusterClientBuilder;
use deadpool_redis::redis::sentinel::{SentinelClient, SentinelServerType};
use deadpool_redis::redis::{RedisResult, cmd};
use tokio::time::{sleep, timeout};
use tower_distributed::{Quota, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::{Better, Versus};
use crate::common::stats::median;
use support::cluster::RedisCluster;
use support::sentinel::Sentinel;

const CLUSTER: &str = "failover-recovery-vs-bare-cluster";
const SENTINEL: &str = "failover-recovery-vs-bare-sentinel";

/// How often each client calls.
const PAUSE: Duration = Duration::from_millis(5);

/// The time-out of the bare client, as that of the store.
const TIMEOUT: Duration = Duration::from_millis(500);

pub fn run(bench: &Bench) {
    let rounds = bench.settings.rounds.min(5);
    if bench.settings.wants(CLUSTER) {
        tell(
            CLUSTER,
            "redis-rs, Cluster",
            (0..rounds)
                .map(|_| bench.runtime.block_on(cluster()))
                .collect(),
        );
    }
    if bench.settings.wants(SENTINEL) {
        tell(
            SENTINEL,
            "redis-rs, Sentinel",
            (0..rounds)
                .map(|_| bench.runtime.block_on(sentinel()))
                .collect(),
        );
    }
}

fn tell(name: &str, peer: &str, rounds: Vec<[Duration; 2]>) {
    let [ours, theirs] =
        [0, 1].map(|of| median(rounds.iter().map(|round| round[of].as_secs_f64())));
    Versus {
        name,
        measures: "s without a successful call in a failover",
        ours,
        peer,
        theirs,
        ratio: median(
            rounds
                .iter()
                .map(|[ours, bare]| ours.as_secs_f64() / bare.as_secs_f64()),
        ),
        better: Better::Lower,
    }
    .tell();
}

async fn cluster() -> [Duration; 2] {
    let cluster = RedisCluster::start().await;
    let _replica = cluster.replica_of(0).await;
    let key = |name: &str| {
        let is_lost = |key: &u64| {
            cluster.node_of(&format!("td:{{{name}:{key}}}:tat")).port() == cluster.nodes()[0].port()
        };
        (0..).find(is_lost).unwrap()
    };
    let (ours, bare) = (key("ours"), key("bare"));
    let bucket = bucket(&Store::builder().cluster(cluster.urls()).unwrap());
    let client = ClusterClientBuilder::new(cluster.urls()).build().unwrap();
    let connection = client.get_async_connection().await.unwrap();
    let ours = tokio::spawn(recovery(async move || bucket.allow(ours).await.is_ok()));
    let bare = tokio::spawn(recovery(async move || {
        let mut connection = connection.clone();
        let name = format!("td:{{bare:{bare}}}:tat");
        let asked: Result<RedisResult<()>, _> =
            timeout(TIMEOUT, cmd("GET").arg(name).query_async(&mut connection)).await;
        asked.is_ok_and(|asked| asked.is_ok())
    }));
    sleep(Duration::from_millis(300)).await;
    cluster.nodes()[0].kill9();
    told("cluster", ours.await.unwrap(), bare.await.unwrap())
}

async fn sentinel() -> [Duration; 2] {
    let sentinel = Sentinel::start().await;
    let name = sentinel.service_name().to_owned();
    let bucket = bucket(
        &Store::builder()
            .sentinel(sentinel.sentinel_urls(), &name)
            .unwrap(),
    );
    let client = || {
        SentinelClient::build(
            sentinel.sentinel_urls(),
            name.clone(),
            None,
            SentinelServerType::Master,
        )
        .unwrap()
    };
    let (mut client, mut connection) = (client(), None);
    let ours = tokio::spawn(recovery(async move || bucket.allow(1_u64).await.is_ok()));
    let bare = tokio::spawn(recovery(async move || {
        let asked = timeout(TIMEOUT, async {
            let mut known = match connection.take() {
                Some(known) => known,
                None => client.get_async_connection().await?,
            };
            cmd("SET").arg("bare").arg(1).exec_async(&mut known).await?;
            RedisResult::Ok(known)
        });
        connection = asked.await.ok().and_then(Result::ok);
        connection.is_some()
    }));
    sleep(Duration::from_millis(300)).await;
    sentinel.kill_master().await;
    told("sentinel", ours.await.unwrap(), bare.await.unwrap())
}

fn bucket(store: &Store) -> TokenBucket {
    TokenBucket::new(store, "ours", Quota::per_second(1_000_000)).unwrap()
}

/// The time between the last success before the first failure and the next success.
async fn recovery(mut ask: impl AsyncFnMut() -> bool) -> Duration {
    let (mut last, mut failed) = (Instant::now(), false);
    loop {
        match (ask().await, failed) {
            (true, true) => return last.elapsed(),
            (true, false) => last = Instant::now(),
            (false, _) => failed = true,
        }
        sleep(PAUSE).await;
    }
}

fn told(what: &str, ours: Duration, bare: Duration) -> [Duration; 2] {
    eprintln!("{what}: back after {ours:?}, the bare client after {bare:?}");
    [ours, bare]
}
