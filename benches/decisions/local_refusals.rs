//! A key that is known to be refused: how fast this process says so, and how seldom it asks Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use tower_distributed::{Quota, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::{figure, note, number};
use crate::common::stats::median;

const PER_SECOND: &str = "local-refusals-per-second";
const CALLS: &str = "script-calls-per-1000-refusals";
const KEY: &str = "key-0000000000000001";

struct Round {
    per_second: f64,
    calls_per_1000: f64,
}

pub fn run(bench: &Bench) {
    if !bench.settings.wants(PER_SECOND) && !bench.settings.wants(CALLS) {
        return;
    }
    let mut alone = Vec::new();
    let mut together = Vec::new();
    for _ in 0..bench.settings.rounds {
        alone.push(round(bench, 1));
        together.push(round(bench, 2));
    }
    let of = |rounds: &[Round], read: fn(&Round) -> f64| median(rounds.iter().map(read));
    let [alone_rate, together] =
        [&alone, &together].map(|rounds| of(rounds, |round| round.per_second));
    note(format!(
        "A refused key, refusals from memory by two tasks: {}/s.",
        number(together.round())
    ));
    figure(
        PER_SECOND,
        "refusals/s from memory, one key, one task",
        alone_rate,
    );
    // The fewer refusals, the more calls per 1000.
    figure(
        CALLS,
        "calls of Redis per 1000 refusals from memory",
        of(&alone, |round| round.calls_per_1000),
    );
}

fn round(bench: &Bench, tasks: usize) -> Round {
    bench.server.empty();
    let store = Store::redis(&bench.server.url).unwrap();
    let bucket = TokenBucket::new(&store, "bench", Quota::per_hour(1))
        .unwrap()
        .cache_refusals(true);
    let first = bench.runtime.block_on(bucket.allow(KEY)).unwrap();
    assert!(first.is_admitted());

    let stop = Arc::new(AtomicBool::new(false));
    let (began, calls_before) = (Instant::now(), bench.server.script_calls());
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            bench
                .runtime
                .spawn(count_refusals(bucket.clone(), stop.clone()))
        })
        .collect();
    thread::sleep(bench.settings.length);
    stop.store(true, Ordering::Relaxed);
    let refusals: u64 = tasks
        .into_iter()
        .map(|task| bench.runtime.block_on(task).unwrap())
        .sum();
    let took = began.elapsed();
    let calls = bench.server.script_calls() - calls_before;
    Round {
        per_second: refusals as f64 / took.as_secs_f64(),
        calls_per_1000: calls as f64 * 1000.0 / refusals as f64,
    }
}

async fn count_refusals(bucket: TokenBucket, stop: Arc<AtomicBool>) -> u64 {
    let mut refusals = 0;
    while !stop.load(Ordering::Relaxed) {
        assert!(!bucket.allow(KEY).await.unwrap().is_admitted());
        refusals += 1;
    }
    refusals
}
