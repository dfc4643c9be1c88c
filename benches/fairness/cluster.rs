//! What a hand-over costs the masters of a Cluster that have nothing to do with its key.

#[allow(dead_code, reason = "another bench uses the rest")]
#[path = "../scale/drive.rs"]
mod drive;
#[allow(dead_code, reason = "another bench uses the rest")]
#[path = "../scale/meter.rs"]
mod meter;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tower_distributed::{Mutex, Store};

use self::drive::{Operation, drive};
use self::meter::{Meter, Reading};
use crate::common::Bench;
use crate::common::report::figure;
use crate::common::stats::median;
use support::cluster::RedisCluster;

const HANDOVERS: u64 = 40_000;
const WARM_UP: u64 = 4_000;
const CALLERS: u64 = 32;

pub fn run(bench: &Bench) {
    let name = "cluster-handover-other-master-us";
    if !bench.settings.wants(name) {
        return;
    }
    let cluster = bench.runtime.block_on(RedisCluster::start());
    let urls = cluster.urls();
    let patience = Duration::from_secs(10);
    // Two stores are as two processes.
    let mutexes = [(); 2].map(|()| {
        let builder = Store::builder()
            .timeout(patience)
            .connect_timeout(patience)
            .queue_timeout(patience);
        Mutex::builder()
            .strict_fifo()
            .build(&builder.cluster(urls.clone()).unwrap(), "bench")
            .unwrap()
    });
    let operation: Operation = Arc::new(move |number| {
        let mutex = mutexes[(number % 2) as usize].clone();
        Box::pin(async move { assert!(mutex.lock("hot").await.unwrap().unlock().await.unwrap()) })
    });
    drive(&bench.runtime, &operation, CALLERS, 0..WARM_UP);
    let rounds = (0..bench.settings.rounds).map(|_| round(bench, &urls, &operation));
    let measures = "CPU of each other master per hand-over, µs, without what it uses when idle; 3 masters, 2 processes";
    figure(name, measures, median(rounds.collect::<Vec<_>>()));
}

fn round(bench: &Bench, urls: &[String], operation: &Operation) -> f64 {
    let mut meters: Vec<_> = urls.iter().map(|url| Meter::new(&[url])).collect();
    let read =
        |meters: &mut Vec<Meter>| meters.iter_mut().map(Meter::read).collect::<Vec<Reading>>();
    let before = read(&mut meters);
    let took = drive(&bench.runtime, operation, CALLERS, 0..HANDOVERS);
    let after = read(&mut meters);
    // Nodes talk to each other, and look after their clients, without any call.
    thread::sleep(took);
    let idle = read(&mut meters);
    let used = before
        .iter()
        .zip(&after)
        .zip(&idle)
        .map(|((before, after), idle)| {
            let (used, idle) = (*after - *before, *idle - *after);
            (used.scripts, used.cpu - idle.cpu)
        });
    let mut used: Vec<_> = used.collect();
    used.sort_by(|a, b| a.0.total_cmp(&b.0));
    let others = (used[0].1 + used[1].1) / 2.0;
    (others / HANDOVERS as f64).max(0.0)
}
