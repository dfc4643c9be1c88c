//! Many leases that are held: how seldom renewing them asks Redis, and whether any is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tower_distributed::{Mutex, MutexGuard, Store};

use crate::common::Bench;
use crate::common::report::{figure, note};
use crate::common::settings::seconds;

const CALLS: &str = "renewal-calls-per-second";
const LOST: &str = "leases-lost";
const LEASES: usize = 10_000;
const TTL: Duration = Duration::from_secs(30);

pub fn run(bench: &Bench) -> Result<(), String> {
    if !bench.settings.wants(CALLS) && !bench.settings.wants(LOST) {
        return Ok(());
    }
    let hold = seconds("HOLD", 60.0)?;
    bench.server.empty();
    let mutex = Mutex::builder()
        .ttl(TTL)
        .build(&Store::redis(&bench.server.url).unwrap(), "bench")
        .unwrap();
    let keys = (0..LEASES).map(|i| format!("key-{i:016}"));
    let guards = bench
        .runtime
        .block_on(join_all(keys.map(|key| mutex.lock(key))));
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let lost = count_lost(bench, &guards);

    let (began, calls_before) = (Instant::now(), bench.server.script_calls());
    thread::sleep(hold);
    let calls = bench.server.script_calls() - calls_before;
    let per_second = calls as f64 / began.elapsed().as_secs_f64();
    // Before they are released, which ends them too.
    let lost = lost.load(Ordering::Relaxed);
    let released = bench
        .runtime
        .block_on(join_all(guards.into_iter().map(MutexGuard::unlock)));
    let gone = released
        .into_iter()
        .filter(|was_held| !matches!(was_held, Ok(true)))
        .count();

    note(format!(
        "{LEASES} leases held for {hold:?}: {calls} calls of scripts, {lost} lost, {gone} not held at the end."
    ));
    figure(
        CALLS,
        "script calls/s that renew 10 000 leases of 30 s",
        per_second,
    );
    // The holder must have been told of each that is gone.
    figure(LOST, "leases lost, of 10 000", lost.max(gone) as f64);
    Ok(())
}

/// How many have been told so far that their lease is lost.
fn count_lost(bench: &Bench, guards: &[MutexGuard]) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    for guard in guards {
        let (lost, count) = (guard.lost(), count.clone());
        bench.runtime.spawn(async move {
            lost.await;
            count.fetch_add(1, Ordering::Relaxed);
        });
    }
    count
}
