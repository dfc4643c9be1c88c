//! Many waiters for one key time out at one instant. Measured is the longest pause of callers of other keys of the same
//! WaitGroup.
//!
//! The waiters arrive over 2 s. Each has a `max_wait` of its own, so that all end at one instant, 4 s after the first
//! has come. Permits have no cohorts: each waiter has a place of its own in the queue of the store.
//!
//! `mass-sleep-stall-ms` is what the runtime itself takes: as many tasks only sleep until one instant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until};
use tower_distributed::{Store, WaitGroup};

use crate::common::Bench;
use crate::common::report::{figure, note};

const WAITERS: u32 = 20_000;
const MAX_WAIT: Duration = Duration::from_secs(4);
/// The time within which all waiters come.
const ARRIVAL: Duration = Duration::from_secs(2);
/// The callers of other keys.
const OTHERS: usize = 4;
/// The window begins this long before the waiters time out.
const EARLIER: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(60);

pub fn run(bench: &Bench) {
    sleepers(bench);
    bench.server.empty();
    let store = Store::builder().redis(&bench.server.url).unwrap();
    let group = WaitGroup::new(&store, "trust", 1).unwrap();
    let held = bench.runtime.block_on(group.add("crowd")).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let others = others(bench, &group, &over);
    let ticks = bench.runtime.spawn(ticks(Arc::clone(&over)));
    let deadline = Instant::now() + MAX_WAIT;
    let waiters = bench.runtime.spawn(wait(group.clone(), deadline));

    thread::sleep((deadline - EARLIER).saturating_duration_since(Instant::now()));
    let queues: Vec<String> = bench.server.query(&["KEYS", "*:waiters"]);
    let mut connection = bench.server.connection();
    let mut places = || -> u32 {
        let mut command = deadpool_redis::redis::cmd("ZCARD");
        command.arg(&queues[0]).query(&mut connection).unwrap()
    };
    assert_eq!(
        (queues.len(), places()),
        (1, WAITERS),
        "all wait: {queues:?}"
    );
    thread::sleep(deadline.saturating_duration_since(Instant::now()));
    while places() > 0 {
        assert!(
            deadline.elapsed() < SOON,
            "the places of waiters that have timed out remain"
        );
        thread::sleep(TICK);
    }
    let empty = Instant::now();
    let ended = bench.runtime.block_on(waiters).unwrap();
    let end = ended.max(empty);
    over.store(true, Ordering::Relaxed);
    let others = times_of(bench, others);
    let ticks = bench.runtime.block_on(ticks).unwrap();
    assert!(bench.runtime.block_on(held.done()).unwrap());

    let (begin, length) = (deadline - EARLIER, end - (deadline - EARLIER));
    figure(
        "mass-timeout-stall-ms",
        "longest pause of other callers, ms",
        longest(&others, begin, end),
    );
    note(format!(
        "{WAITERS} waiters timed out together. The last one ended {:.1} ms after the deadline; the queue of the store was \
         empty after {:.1} ms. In the same length of time before ({:.0} ms) the longest pause was {:.1} ms. The longest \
         runtime tick was late by {:.1} ms, before by {:.1} ms.",
        ms(ended.saturating_duration_since(deadline)),
        ms(empty - deadline),
        ms(length),
        longest(&others, begin - length, begin),
        longest(std::slice::from_ref(&ticks), begin, end) - ms(TICK),
        longest(std::slice::from_ref(&ticks), begin - length, begin) - ms(TICK),
    ));
}

/// Measures the pause of callers while as many tasks as there are waiters sleep until one instant.
fn sleepers(bench: &Bench) {
    bench.server.empty();
    let store = Store::builder().redis(&bench.server.url).unwrap();
    let group = WaitGroup::new(&store, "trust", 1).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let others = others(bench, &group, &over);
    let deadline = Instant::now() + ARRIVAL;
    let sleepers: Vec<_> = (0..WAITERS)
        .map(|_| {
            bench
                .runtime
                .spawn(async move { sleep_until(deadline.into()).await })
        })
        .collect();
    bench.runtime.block_on(join_all(sleepers));
    let end = Instant::now();
    over.store(true, Ordering::Relaxed);
    let others = times_of(bench, others);
    let stall = longest(&others, deadline - EARLIER, end);
    figure(
        "mass-sleep-stall-ms",
        "the same if as many tasks only sleep, ms",
        stall,
    );
}

/// The longest pause of a task that overlaps a span, ms.
fn longest(tasks: &[Vec<Instant>], begin: Instant, end: Instant) -> f64 {
    let gaps = tasks.iter().flat_map(|times| times.windows(2));
    let within = gaps.filter(|gap| gap[1] > begin && gap[0] < end);
    within.map(|gap| ms(gap[1] - gap[0])).fold(0.0, f64::max)
}

/// Starts the waiters. Returns when the last of them has ended.
async fn wait(group: WaitGroup, deadline: Instant) -> Instant {
    let began = Instant::now();
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let due = began + ARRIVAL * number / WAITERS;
        if due > Instant::now() {
            sleep(TICK).await;
        }
        let group = group.clone();
        waiters.push(tokio::spawn(async move {
            let group = group.with_max_wait(deadline.saturating_duration_since(Instant::now()));
            assert!(group.add("crowd").await.unwrap_err().is_waited_too_long());
            Instant::now()
        }));
    }
    join_all(waiters)
        .await
        .into_iter()
        .map(Result::unwrap)
        .max()
        .unwrap()
}

/// Starts the callers of other keys.
fn others(
    bench: &Bench,
    group: &WaitGroup,
    over: &Arc<AtomicBool>,
) -> Vec<JoinHandle<Vec<Instant>>> {
    let key = |key| format!("other-{key}");
    (0..OTHERS)
        .map(|number| {
            bench
                .runtime
                .spawn(other(group.clone(), key(number), Arc::clone(over)))
        })
        .collect()
}

fn times_of(bench: &Bench, others: Vec<JoinHandle<Vec<Instant>>>) -> Vec<Vec<Instant>> {
    bench
        .runtime
        .block_on(join_all(others))
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

/// Acquires and releases. Returns when each release was answered.
async fn other(group: WaitGroup, key: String, over: Arc<AtomicBool>) -> Vec<Instant> {
    let mut times = Vec::new();
    while !over.load(Ordering::Relaxed) {
        assert!(group.add(&*key).await.unwrap().done().await.unwrap());
        times.push(Instant::now());
    }
    times
}

/// Returns when each of many short sleeps ended.
async fn ticks(over: Arc<AtomicBool>) -> Vec<Instant> {
    let mut times = Vec::new();
    while !over.load(Ordering::Relaxed) {
        sleep(TICK).await;
        times.push(Instant::now());
    }
    times
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}
