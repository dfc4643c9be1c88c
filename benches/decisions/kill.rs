//! All connections are closed at once under load: which calls fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use deadpool_redis::redis;
use tower_distributed::{Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::{figure, note};
use crate::workload::Workload;

const NAME: &str = "kill-refused";
const CALLERS: usize = 256;
/// How long the callers call before a kill, and after it.
const SPAN: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Calls {
    stop: AtomicBool,
    /// Calls that have no answer yet.
    in_flight: AtomicU32,
    served: AtomicU32,
    failed: AtomicU32,
}

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    // Of all kills: one failure would be one too many.
    let mut refused = 0;
    for _ in 0..bench.settings.rounds {
        refused += Workload::ALL
            .map(|workload| kill(bench, workload))
            .iter()
            .sum::<u32>();
    }
    figure(
        NAME,
        "calls failed that were not in flight, all connections killed, 256 callers",
        refused.into(),
    );
}

/// How many calls failed beyond those that had no answer yet when the connections were closed.
fn kill(bench: &Bench, workload: Workload) -> u32 {
    bench.server.empty();
    let store = Store::redis(&bench.server.url).unwrap();
    let bucket = TokenBucket::new(&store, "bench", workload.quota()).unwrap();
    let calls = Arc::new(Calls::default());
    let task = |caller| {
        bench
            .runtime
            .spawn(call(bucket.clone(), workload, caller, calls.clone()))
    };
    let tasks: Vec<_> = (0..CALLERS).map(task).collect();
    let mut connection = bench.server.connection();
    thread::sleep(SPAN);

    let failed_before = calls.failed.load(Ordering::Relaxed);
    let in_flight = || calls.in_flight.load(Ordering::Relaxed);
    let in_flight_before = in_flight();
    let kill: u32 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .query(&mut connection)
        .unwrap();
    // The connections are closed at some time in between, and a call is in flight but for a moment.
    let in_flight = in_flight_before.max(in_flight());
    let served_before = calls.served.load(Ordering::Relaxed);
    thread::sleep(SPAN);
    calls.stop.store(true, Ordering::Relaxed);
    tasks
        .into_iter()
        .for_each(|task| bench.runtime.block_on(task).unwrap());

    let failed = calls.failed.load(Ordering::Relaxed);
    let served_after = calls.served.load(Ordering::Relaxed) - served_before;
    note(format!(
        "{kill} connections killed under {CALLERS} callers, {in_flight} calls in flight: {failed} failed, {served_after} \
         served within {SPAN:?}; {}",
        workload.title()
    ));
    assert!(served_after > 0, "nothing is served after the kill");
    failed_before + (failed - failed_before).saturating_sub(in_flight)
}

async fn call(bucket: TokenBucket, workload: Workload, caller: usize, calls: Arc<Calls>) {
    let mut keys = workload.keys(caller, CALLERS);
    while !calls.stop.load(Ordering::Relaxed) {
        calls.in_flight.fetch_add(1, Ordering::Relaxed);
        let outcome = bucket.allow(keys.next()).await;
        calls.in_flight.fetch_sub(1, Ordering::Relaxed);
        let count = if outcome.is_ok() {
            &calls.served
        } else {
            &calls.failed
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
