//! One contended mutex on a Cluster: two processes of 16 callers, on a key of each master in turn, beside one server.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tower_distributed::{Mutex, Store};

use crate::child::{self, Child, Role, tell};
use crate::common::report::{Better, Versus, figure};
use crate::common::settings::Settings;
use crate::common::stats::{median, percentile};
use crate::common::{self, Bench};
use support::cluster::RedisCluster;

const RATE: &str = "cluster-handovers-vs-one-server";
const WAKE: &str = "cluster-wake-p99-ms";
const PROCESSES: usize = 2;
const CALLERS: usize = 16;

pub fn run(bench: &Bench) {
    if !bench.settings.wants(RATE) && !bench.settings.wants(WAKE) {
        return;
    }
    let cluster = bench.runtime.block_on(RedisCluster::start());
    // A key of each master.
    let keys: Vec<String> = cluster
        .nodes()
        .iter()
        .map(|node| {
            let is_here = |key: &String| {
                cluster.node_of(&format!("td:{{bench:{key}}}:lock")).port() == node.port()
            };
            (0..)
                .map(|number| format!("key-{number}"))
                .find(is_here)
                .unwrap()
        })
        .collect();
    let (mut rates, mut waits) = (Vec::new(), Vec::new());
    for round in 0..bench.settings.rounds {
        bench.server.empty();
        let key = &keys[round % keys.len()];
        let (one, _) = measure("server", &bench.server.url, key);
        let (all, wait) = measure("cluster", &cluster.urls().join(","), key);
        eprintln!(
            "hand-overs: one server {one:.0}/s, cluster {all:.0}/s, p99 from unlock to lock {wait:.2} ms"
        );
        rates.push((all, one));
        waits.push(wait);
    }
    Versus {
        name: RATE,
        measures: "hand-overs/s of one mutex on a Cluster, 2 processes × 16",
        ours: median(rates.iter().map(|round| round.0)),
        peer: "our mutex on one server",
        theirs: median(rates.iter().map(|round| round.1)),
        ratio: median(rates.iter().map(|(all, one)| all / one)),
        better: Better::Higher,
    }
    .tell();
    figure(
        WAKE,
        "p99 from an unlock to the next lock, ms",
        median(waits),
    );
}

/// Hand-overs per second, and the 99th percentile of the time from an unlock to the next lock, in ms.
fn measure(kind: &str, url: &str, key: &str) -> (f64, f64) {
    let mut children = child::start(PROCESSES, &format!("{kind} {key}"), url);
    let mut marks: Vec<(u64, u64)> = Vec::new();
    for child in &mut children {
        let numbers: Vec<u64> = Child::numbers(child);
        marks.extend(numbers.chunks_exact(2).map(|mark| (mark[0], mark[1])));
    }
    marks.sort_unstable();
    let mut waits: Vec<u32> = marks
        .windows(2)
        .map(|pair| u32::try_from(pair[1].0.saturating_sub(pair[0].1) / 1000).unwrap_or(u32::MAX))
        .collect();
    waits.sort_unstable();
    let (first, last) = (marks[0].0, marks[marks.len() - 1].1);
    (
        marks.len() as f64 / ((last - first) as f64 / 1e9),
        percentile(&waits, 0.99) / 1000.0,
    )
}

/// Does the part of a copy: tells when it locked and unlocked, in ns of the machine's clock.
pub fn play(role: &Role) -> ExitCode {
    let length = Settings::read().unwrap().length;
    let runtime = common::runtime().unwrap();
    let (kind, key) = role.name.split_once(' ').unwrap();
    let store = match kind {
        "cluster" => Store::builder().cluster(role.url.split(',')).unwrap(),
        _ => Store::redis(&role.url).unwrap(),
    };
    let mutex = Mutex::builder()
        .strict_fifo()
        .build(&store, "bench")
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    runtime.block_on(async { drop(mutex.lock(key).await.unwrap()) });
    child::wait_for_the_others();
    let tasks: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (mutex, key, stop) = (mutex.clone(), key.to_owned(), stop.clone());
            runtime.spawn(async move {
                let mut marks = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let guard = mutex.lock(&*key).await.unwrap();
                    let locked = now();
                    let unlocked = now();
                    guard.unlock().await.unwrap();
                    marks.extend([locked, unlocked]);
                }
                marks
            })
        })
        .collect();
    thread::sleep(length);
    stop.store(true, Ordering::Relaxed);
    let marks: Vec<u64> = tasks
        .into_iter()
        .flat_map(|task| runtime.block_on(task).unwrap())
        .collect();
    tell(&marks);
    ExitCode::SUCCESS
}

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
