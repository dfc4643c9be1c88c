//! Many who wait for what is not released: what they cost the server meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use tower_distributed::{Mutex, Store};

use crate::common::Bench;
use crate::common::report::{figure, note};
use crate::common::server::calls;
use crate::common::settings::seconds;

const NAME: &str = "idle-waiter-commands-per-second";
const WAITERS: usize = 1000;
const KEY: &str = "key-0000000000000001";

pub fn run(bench: &Bench) -> Result<(), String> {
    if !bench.settings.wants(NAME) {
        return Ok(());
    }
    let idle = seconds("IDLE", 10.0)?;
    bench.server.empty();
    let store = Store::redis(&bench.server.url).unwrap();
    // Each has a place of its own in the queue: of the others, a process has one for all its waiters.
    let mutex = Mutex::builder().strict_fifo().build(&store, "bench").unwrap();
    let guard = bench.runtime.block_on(mutex.lock(KEY)).unwrap();
    let waiters: Vec<_> = (0..WAITERS).map(|_| bench.runtime.spawn(lock_and_unlock(mutex.clone()))).collect();
    wait_until_all_wait(bench, &store);

    let mut connection = bench.server.connection();
    let (began, calls_before) = (Instant::now(), calls(&mut connection, |_| true));
    thread::sleep(idle);
    // The first asking is among those counted by the second.
    let calls = calls(&mut connection, |_| true) - calls_before - 1;
    let per_second = calls as f64 / began.elapsed().as_secs_f64();

    let released = Instant::now();
    assert!(bench.runtime.block_on(guard.unlock()).unwrap());
    waiters.into_iter().for_each(|waiter| bench.runtime.block_on(waiter).unwrap());
    note(format!(
        "{WAITERS} waiters watched for {idle:?}: {calls} commands; then all were served within {:.0} ms.",
        released.elapsed().as_secs_f64() * 1000.0
    ));
    figure(NAME, "commands/s of 1000 waiters for one lock", per_second);
    Ok(())
}

async fn lock_and_unlock(mutex: Mutex) {
    assert!(mutex.lock(KEY).await.unwrap().unlock().await.unwrap());
}

/// A queue that takes no more than all of them has no place for one more.
fn wait_until_all_wait(bench: &Bench, store: &Store) {
    let probe =
        Mutex::builder().strict_fifo().max_waiters(WAITERS as u32).max_wait(Duration::from_millis(10));
    let probe = probe.build(store, "bench").unwrap();
    let patience = Instant::now() + Duration::from_secs(10);
    while bench.runtime.block_on(probe.lock(KEY)).unwrap_err().is_waited_too_long() {
        assert!(Instant::now() < patience, "not all {WAITERS} waiters are in the queue");
    }
}
