//! The harness of the integration tests: real Redis processes, faults between them and us, copies of
//! ourselves.
//!
//! Nothing in here sleeps and hopes: whoever waits, waits with [`eventually`] for something that can be
//! observed. Whatever is started dies with its handle, and also when the test process itself is killed: see
//! [`supervised`].

// Every test binary compiles all of this and uses a part of it.
#![allow(dead_code, unreachable_pub, missing_docs, missing_debug_implementations)]
// A harness that cannot do its work has only one thing to say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::must_use_candidate)]

use std::time::{Duration, Instant};

pub mod client;
pub mod cluster;
pub mod keys;
pub mod ports;
pub mod processes;
pub mod proxy;
pub mod redis_server;
pub mod resp;
pub mod scratch_dir;
#[cfg(all(feature = "tracing", feature = "metrics"))]
pub mod seen;
pub mod sentinel;
pub mod slow_proxy;
pub mod supervised;

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls `condition` until it holds; panics with `what` when it does not hold within `deadline`.
///
/// Needs a running clock: not for tests that pause tokio's.
pub async fn eventually(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !condition().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(deadline, polling).await.is_err() {
        panic!("waited {deadline:?} in vain for {what}");
    }
}

/// [`eventually`] for tests without a runtime: blocks the thread.
pub fn eventually_blocking(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < deadline, "waited {deadline:?} in vain for {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Runs `test` on a thread of its own and panics if it takes longer than `limit`: for what may block for ever.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    test: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, outcome) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // Nobody listens any more where it took too long.
        let _ = done.send(test());
    });
    match outcome.recv_timeout(limit) {
        Ok(outcome) => outcome,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what} took longer than {limit:?}"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it ended without an outcome"),
        },
    }
}
