//! The harness of the tests and benches: real Redis processes, faults between them and the tests, and copies of the
//! test process.
//!
//! Nothing here relies on fixed sleeps: code that waits uses [`eventually`] and waits for an observable condition.
//! A started process ends when its handle is dropped, and also when the test process is killed: see [`supervised`].

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::new_without_default,
    clippy::return_self_not_must_use
)]
// A harness that cannot do its work can only panic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::must_use_candidate
)]

use std::hash::{BuildHasher as _, RandomState};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::coop;

pub mod client;
pub mod clock_shim;
pub mod cluster;
pub mod example;
pub mod interval_bound;
pub mod keys;
pub mod patient;
pub mod pools;
pub mod ports;
pub mod processes;
pub mod program;
pub mod proxy;
pub mod recorded;
pub mod redis_server;
pub mod replicated;
pub mod resp;
pub mod scratch_dir;
pub mod seen;
pub mod sentinel;
pub mod slot_move;
pub mod supervised;

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls `condition` until it holds. Panics with `what` if it does not hold within `deadline`.
///
/// Needs a running clock, so it is not for tests that pause tokio's clock.
pub async fn eventually(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !condition().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(deadline, polling).await.is_err() {
        panic!("waited {deadline:?} for {what}");
    }
}

/// The seed of a random test, which is printed: `SEED` of the environment, or a new one.
pub fn seed() -> u64 {
    let random = || RandomState::new().hash_one("seed");
    let seed = std::env::var("SEED").map_or_else(|_| random(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    seed
}

/// Spends what is left of the task's cooperative budget.
pub async fn spend_budget() {
    let spent = std::future::poll_fn(|context| {
        while let Poll::Ready(step) = coop::poll_proceed(context) {
            step.made_progress();
        }
        Poll::Ready(!coop::has_budget_remaining())
    });
    assert!(spent.await);
}

/// Multiplies the load of the long tests: `SIZE=4 tests/run.sh` runs four times as much.
pub fn size() -> usize {
    std::env::var("SIZE").map_or(1, |size| size.parse().expect("SIZE must be a whole number"))
}

/// Like [`eventually`], for tests without a runtime: blocks the thread.
pub fn eventually_blocking(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < deadline, "waited {deadline:?} for {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Runs `test` on a new thread, for tests that may block forever. Panics if it takes longer than `limit`.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    test: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, outcome) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // After the limit, the receiver does not listen any more.
        let _ = done.send(test());
    });
    match outcome.recv_timeout(limit) {
        Ok(outcome) => outcome,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
            panic!("{what} took longer than {limit:?}")
        }
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it ended without an outcome"),
        },
    }
}
