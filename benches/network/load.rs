//! One cell of a table: so many callers, at full speed or at a pace.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::Barrier;
use tokio::time::{self, MissedTickBehavior};

use crate::common::stats::percentile;

/// Calls of each caller before the clock starts.
const WARM_UP: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Load {
    pub callers: usize,
    /// From the beginning of a caller's call to that of its next one. None: the next call begins at once.
    pub pace: Option<Duration>,
}

impl Load {
    pub const ALL: [Self; 6] = [
        Self::full(1),
        Self::full(4),
        Self::full(16),
        Self::full(64),
        Self::full(256),
        Self {
            callers: 64,
            pace: Some(Duration::from_millis(20)),
        },
    ];

    pub const fn full(callers: usize) -> Self {
        Self {
            callers,
            pace: None,
        }
    }

    pub fn title(self) -> String {
        let Self { callers, pace } = self;
        pace.map_or(callers.to_string(), |pace| {
            format!("{callers}, every {} ms", pace.as_millis())
        })
    }
}

/// One of the callers.
pub trait Caller: Send + 'static {
    fn call(&mut self) -> impl Future<Output = ()> + Send;
}

/// What one round gave.
#[derive(Clone, Copy)]
pub struct Sample {
    pub per_second: f64,
    /// Milliseconds.
    pub p50: f64,
    pub p99: f64,
}

/// Lets these callers call for so long.
pub fn run<C: Caller>(
    runtime: &Runtime,
    callers: Vec<C>,
    pace: Option<Duration>,
    length: Duration,
) -> Sample {
    let stop = Arc::new(AtomicBool::new(false));
    let start = Arc::new(Barrier::new(callers.len() + 1));
    // So that paced callers do not call all at once.
    let stagger = pace.unwrap_or_default() / callers.len() as u32;
    let tasks: Vec<_> = callers
        .into_iter()
        .zip(0..)
        .map(|(mut caller, number)| {
            let (start, stop) = (start.clone(), stop.clone());
            runtime.spawn(async move {
                for _ in 0..WARM_UP {
                    caller.call().await;
                }
                start.wait().await;
                match pace {
                    None => at_full_speed(&mut caller, &stop).await,
                    Some(pace) => at_a_pace(&mut caller, stagger * number, pace, &stop).await,
                }
            })
        })
        .collect();
    let began = runtime.block_on(async {
        start.wait().await;
        Instant::now()
    });
    std::thread::sleep(length);
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    tasks
        .into_iter()
        .for_each(|task| times.extend(runtime.block_on(task).unwrap()));
    let took = began.elapsed();
    times.sort_unstable();
    let millis = |share| percentile(&times, share) / 1e6;
    Sample {
        per_second: times.len() as f64 / took.as_secs_f64(),
        p50: millis(0.5),
        p99: millis(0.99),
    }
}

async fn at_full_speed(caller: &mut impl Caller, stop: &AtomicBool) -> Vec<u32> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        times.push(timed(caller).await);
    }
    times
}

async fn at_a_pace(
    caller: &mut impl Caller,
    after: Duration,
    pace: Duration,
    stop: &AtomicBool,
) -> Vec<u32> {
    let mut times = Vec::new();
    let mut ticks = time::interval_at(time::Instant::now() + after, pace);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks.tick().await;
    while !stop.load(Ordering::Relaxed) {
        times.push(timed(caller).await);
        ticks.tick().await;
    }
    times
}

/// The nanoseconds of one call.
async fn timed(caller: &mut impl Caller) -> u32 {
    let since = Instant::now();
    caller.call().await;
    u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX)
}
