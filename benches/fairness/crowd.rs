//! Callers of several processes that want the permits of one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tower_distributed::wait_group::{Turn, WaitGroupBuilder};
use tower_distributed::{Store, WaitGroup};

use crate::common::Bench;

/// Each store has connections of its own, as another process has.
pub const PROCESSES: usize = 4;

/// The key.
const KEY: &str = "gpu";

/// Callers, and how many permits each group of them got.
pub struct Crowd {
    groups: Vec<WaitGroup>,
    hold: Duration,
    is_over: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
}

/// Whom a caller belongs to: how many were served there.
pub type Count = Arc<AtomicU64>;

impl Crowd {
    /// `hold`: how long each permit is held.
    pub fn new(bench: &Bench, name: &str, builder: &WaitGroupBuilder, hold: Duration) -> Self {
        let _inside = bench.runtime.enter();
        let group = |_| {
            let store = Store::builder().redis(&bench.server.url).unwrap();
            builder.clone().build(&store, name).unwrap()
        };
        let groups = (0..PROCESSES).map(group).collect();
        Self {
            groups,
            hold,
            is_over: Arc::default(),
            callers: Vec::new(),
        }
    }

    fn group(&self, nth: usize, turn: Turn) -> WaitGroup {
        self.groups[nth % PROCESSES].with_turn(turn).unwrap()
    }

    /// Adds so many callers, of which each waits again when it was served.
    pub fn callers(&mut self, bench: &Bench, count: usize, turn: Turn) -> Count {
        let served = Count::default();
        for nth in 0..count {
            let (group, served) = (self.group(nth, turn), Arc::clone(&served));
            let (is_over, hold) = (Arc::clone(&self.is_over), self.hold);
            self.callers.push(bench.runtime.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let permit = group.add(KEY).await.unwrap();
                    served.fetch_add(1, Ordering::Relaxed);
                    if !hold.is_zero() {
                        tokio::time::sleep(hold).await;
                    }
                    permit.done().await.unwrap();
                }
            }));
        }
        served
    }

    /// Adds a caller of which one call always waits, whether or not the calls before it are done.
    pub fn always_one(&mut self, bench: &Bench, nth: usize, turn: Turn) -> Count {
        let served = Count::default();
        let (group, count) = (self.group(nth, turn), Arc::clone(&served));
        let (is_over, hold) = (Arc::clone(&self.is_over), self.hold);
        self.callers.push(bench.runtime.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let permit = group.add(KEY).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    tokio::time::sleep(hold).await;
                    permit.done().await.unwrap();
                });
            }
        }));
        served
    }

    /// Calls again and again with a pause between, for a while. Returns how long each call waited, µs, in order.
    pub fn waits(&self, bench: &Bench, turn: Turn, pause: Duration, length: Duration) -> Vec<u32> {
        let (group, end, hold) = (self.group(1, turn), Instant::now() + length, self.hold);
        bench.runtime.block_on(async {
            let mut waits = Vec::new();
            while Instant::now() < end {
                tokio::time::sleep(pause).await;
                let began = Instant::now();
                let permit = group.add(KEY).await.unwrap();
                waits.push(u32::try_from(began.elapsed().as_micros()).unwrap());
                tokio::time::sleep(hold).await;
                permit.done().await.unwrap();
            }
            waits.sort_unstable();
            waits
        })
    }

    /// Waits until so many callers wait.
    pub fn is_waiting(&self, bench: &Bench, count: u64) {
        bench.runtime.block_on(async {
            while self.groups[0].inspect(KEY).await.unwrap().waiting < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }

    /// Lets all callers end.
    pub fn end(self, bench: &Bench) {
        self.is_over.store(true, Ordering::Relaxed);
        bench.runtime.block_on(async {
            for caller in self.callers {
                caller.await.unwrap();
            }
        });
    }
}

/// How many were served within a while.
pub fn during(counts: &[Count], length: Duration) -> Vec<f64> {
    let read = || {
        counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect::<Vec<_>>()
    };
    let before = read();
    std::thread::sleep(length);
    read()
        .iter()
        .zip(before)
        .map(|(after, before)| (after - before) as f64)
        .collect()
}
