//! What is run: each run has a number, its answer, and takes some polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::yield_now;

use crate::places::SOON;
use support::eventually;

#[derive(Clone)]
pub(crate) struct Work(Arc<State>);

struct State {
    runs: AtomicU64,
    running: AtomicU64,
    gate: Semaphore,
    /// So many of the first fail.
    fail: u64,
}

pub(crate) type Outcome = Result<u64, String>;

impl Work {
    /// Runs end by themselves.
    pub(crate) fn open() -> Self {
        Self::new(Semaphore::MAX_PERMITS, 0)
    }

    /// Runs end as they are let go.
    pub(crate) fn shut() -> Self {
        Self::new(0, 0)
    }

    /// The same, and the first one fails.
    pub(crate) fn failing() -> Self {
        Self::new(0, 1)
    }

    fn new(permits: usize, fail: u64) -> Self {
        let (runs, running) = (AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(State { runs, running, gate: Semaphore::new(permits), fail }))
    }

    pub(crate) fn run(&self) -> impl FnOnce() -> BoxFuture<'static, Outcome> + Send + use<> {
        let state = Arc::clone(&self.0);
        move || {
            Box::pin(async move {
                let run = state.runs.fetch_add(1, Ordering::SeqCst) + 1;
                let running = Running::begin(&state);
                yield_now().await;
                state.gate.acquire().await.unwrap().forget();
                yield_now().await;
                drop(running);
                if run <= state.fail { Err(run.to_string()) } else { Ok(run) }
            })
        }
    }

    pub(crate) fn let_go(&self, runs: usize) {
        self.0.gate.add_permits(runs);
    }

    /// How many are at work now.
    pub(crate) fn running(&self) -> u64 {
        self.0.running.load(Ordering::SeqCst)
    }

    pub(crate) fn runs(&self) -> u64 {
        self.0.runs.load(Ordering::SeqCst)
    }

    /// Waits until so many have begun.
    pub(crate) async fn began(&self, runs: u64) {
        eventually(&format!("run {runs} to begin"), SOON, async || self.runs() >= runs).await;
    }

    /// Waits until nothing runs.
    pub(crate) async fn is_over(&self) {
        let running = &self.0.running;
        eventually("all runs to end", SOON, async || running.load(Ordering::SeqCst) == 0).await;
    }
}

struct Running<'a>(&'a State);

impl<'a> Running<'a> {
    fn begin(state: &'a State) -> Self {
        state.running.fetch_add(1, Ordering::SeqCst);
        Self(state)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}
