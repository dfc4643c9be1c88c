//! One cell of a table: so many callers ask one contestant for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::Barrier;

use crate::common::stats::percentile;
use crate::contestants::Contestant;
use crate::workload::Workload;

/// One decision in so many is timed where there are many callers: reading the clock costs too.
const TIMED: usize = 16;
/// So many decisions of all callers together are made before the clock starts.
const WARM_UP: usize = 4096;

/// What one round gave.
#[derive(Clone, Copy)]
pub struct Sample {
    pub per_second: f64,
    /// Nanoseconds.
    pub p50: f64,
    pub p99: f64,
    pub admitted: f64,
}

pub fn run<C: Contestant>(
    runtime: &Runtime,
    contestant: C,
    workload: Workload,
    callers: usize,
    length: Duration,
) -> Sample {
    let stop = Arc::new(AtomicBool::new(false));
    let start = Arc::new(Barrier::new(callers + 1));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let mut caller = Caller {
                contestant: contestant.clone(),
                keys: workload.keys(caller, callers),
                timed: if callers == 1 { 1 } else { TIMED },
                phase: caller,
                warm_up: (WARM_UP / callers).clamp(1, 256),
            };
            let (start, stop) = (start.clone(), stop.clone());
            runtime.spawn(async move { caller.run(&start, &stop).await })
        })
        .collect();
    let began = runtime.block_on(async {
        start.wait().await;
        Instant::now()
    });
    thread::sleep(length);
    stop.store(true, Ordering::Relaxed);
    let (mut decisions, mut admitted, mut latencies) = (0, 0, Vec::new());
    for task in tasks {
        let tally = runtime.block_on(task).unwrap();
        decisions += tally.decisions;
        admitted += tally.admitted;
        latencies.extend(tally.latencies);
    }
    let took = began.elapsed();
    latencies.sort_unstable();
    Sample {
        per_second: decisions as f64 / took.as_secs_f64(),
        p50: percentile(&latencies, 0.50),
        p99: percentile(&latencies, 0.99),
        admitted: f64::from(admitted) / f64::from(decisions),
    }
}

struct Caller<C> {
    contestant: C,
    keys: crate::workload::Keys,
    timed: usize,
    phase: usize,
    warm_up: usize,
}

#[derive(Default)]
struct Tally {
    decisions: u32,
    admitted: u32,
    latencies: Vec<u32>,
}

impl<C: Contestant> Caller<C> {
    async fn run(&mut self, start: &Barrier, stop: &AtomicBool) -> Tally {
        for _ in 0..self.warm_up {
            self.contestant.admits(self.keys.next()).await;
        }
        start.wait().await;
        let mut tally = Tally::default();
        while !stop.load(Ordering::Relaxed) {
            let key = self.keys.next();
            let since = self.phase.is_multiple_of(self.timed).then(Instant::now);
            self.phase += 1;
            tally.admitted += u32::from(self.contestant.admits(key).await);
            tally.decisions += 1;
            if let Some(since) = since {
                tally
                    .latencies
                    .push(u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX));
            }
        }
        tally
    }
}
