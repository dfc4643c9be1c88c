//! Many callers call in a loop for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::Barrier;

use crate::common::report::{Better, Versus, number};
use crate::common::stats::{median, percentile};
use crate::common::table::Table;

/// How many callers there are.
pub const CALLERS: usize = 256;
/// One call in so many is timed: reading the clock costs too.
const TIMED: usize = 16;
/// So many calls each caller makes before the clock starts.
const WARM_UP: usize = 16;

/// Somebody who calls.
pub trait Caller: Send + 'static {
    fn call(&mut self) -> impl Future<Output = ()> + Send;
}

/// What one round gave.
#[derive(Clone, Copy)]
pub struct Sample {
    pub per_second: f64,
    /// Nanoseconds.
    p50: f64,
    p99: f64,
}

pub fn run<C: Caller>(runtime: &Runtime, length: Duration, caller: impl Fn(usize) -> C) -> Sample {
    let stop = Arc::new(AtomicBool::new(false));
    let start = Arc::new(Barrier::new(CALLERS + 1));
    let spawn = |number| {
        let (caller, start, stop) = (caller(number), start.clone(), stop.clone());
        runtime.spawn(async move { work(caller, number, &start, &stop).await })
    };
    let tasks: Vec<_> = (0..CALLERS).map(spawn).collect();
    let began = runtime.block_on(async {
        start.wait().await;
        Instant::now()
    });
    thread::sleep(length);
    stop.store(true, Ordering::Relaxed);
    let (mut calls, mut latencies) = (0, Vec::new());
    for task in tasks {
        let (made, timed) = runtime.block_on(task).unwrap();
        calls += made;
        latencies.extend(timed);
    }
    let took = began.elapsed();
    latencies.sort_unstable();
    Sample {
        per_second: calls as f64 / took.as_secs_f64(),
        p50: percentile(&latencies, 0.50),
        p99: percentile(&latencies, 0.99),
    }
}

/// How many calls were made, and how long some of them took.
async fn work(
    mut caller: impl Caller,
    number: usize,
    start: &Barrier,
    stop: &AtomicBool,
) -> (usize, Vec<u32>) {
    for _ in 0..WARM_UP {
        caller.call().await;
    }
    start.wait().await;
    let (mut calls, mut latencies) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        // Not all of them at once.
        let since = (number + calls).is_multiple_of(TIMED).then(Instant::now);
        caller.call().await;
        calls += 1;
        if let Some(since) = since {
            latencies.push(u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
    }
    (calls, latencies)
}

/// The medians of the rounds of those that have any.
pub fn print(title: &str, contestants: &[(&str, &[Sample])]) {
    let mut table = Table::new(title, ["contestant", "calls/s", "p50 µs", "p99 µs"]);
    for (contestant, samples) in contestants
        .iter()
        .filter(|(_, samples)| !samples.is_empty())
    {
        let of = |read: fn(&Sample) -> f64| median(samples.iter().map(read));
        table.row([
            (*contestant).to_owned(),
            number(of(|sample| sample.per_second).round()),
            number(of(|sample| sample.p50) / 1000.0),
            number(of(|sample| sample.p99) / 1000.0),
        ]);
    }
    table.print();
}

/// Tells how often ours calls where the peer calls once.
pub fn versus(name: &str, measures: &str, ours: &[Sample], peer: &str, theirs: &[Sample]) {
    let of = |samples: &[Sample]| median(samples.iter().map(|sample| sample.per_second));
    let ratio = |(ours, theirs): (&Sample, &Sample)| ours.per_second / theirs.per_second;
    Versus {
        name,
        measures,
        ours: of(ours),
        peer,
        theirs: of(theirs),
        ratio: median(ours.iter().zip(theirs).map(ratio)),
        better: Better::Higher,
    }
    .tell();
}
