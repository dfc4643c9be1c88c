//! A run in this process: its caller polls it until another caller needs it.
//!
//! A caller may keep its future without polling it, or drop it. So the run becomes a separate task on the caller's
//! runtime in three cases: another caller of its process waits for it; the caller is dropped and the run must go on; or
//! the run has lasted for [`ALONE`], because callers of other processes may wait for it.
//!
//! Also: a limit on concurrent work for one key in this process, such as runs whose result is not shared, or
//! publications.

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::hash::{BuildHasher as _, RandomState};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hashbrown::HashMap;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{JoinHandle, yield_now};

use crate::error::Error;
use crate::error::reasons::Cause;
use crate::key::Key;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};

/// A run stays in its caller's task for once to twice this time.
pub(super) const ALONE: Duration = Duration::from_millis(50);

/// A run that has begun.
pub(super) struct Run {
    state: Mutex<State>,
    /// Whether the run already existed at an earlier check.
    is_old: AtomicBool,
    runtime: Handle,
}

enum State {
    /// Between two polls of the caller.
    Idle(BoxFuture<'static, ()>),
    /// The caller is polling it, or it is being spawned. `spawns`: it becomes a task after that.
    Polled {
        spawns: bool,
    },
    Spawned(JoinHandle<()>),
    Ended,
}

impl Run {
    /// At first, [`outcome`](Self::outcome) polls the run.
    pub(super) fn new(run: BoxFuture<'static, ()>) -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current().map_err(|_| {
            Error::invalid("a single flight may spawn a task: call it within a tokio runtime")
        })?;
        Ok(Arc::new(Self {
            state: Mutex::new(State::Idle(run)),
            is_old: AtomicBool::new(false),
            runtime,
        }))
    }

    /// Turns the run into a task, unless it is one or has ended.
    pub(super) fn spawn(&self) {
        let mut state = lock(&self.state);
        let run = match std::mem::replace(&mut *state, State::Polled { spawns: true }) {
            State::Idle(run) => run,
            State::Polled { .. } => return,
            other => return *state = other,
        };
        drop(state);
        // If the runtime has ended, it drops the run here.
        let task = self.runtime.spawn(run);
        let mut state = lock(&self.state);
        match *state {
            State::Ended => task.abort(),
            _ => *state = State::Spawned(task),
        }
    }

    /// Turns the run into a task at the second check. A check runs after each [`ALONE`].
    pub(super) fn look(&self) {
        if self.is_old.swap(true, Ordering::Relaxed) {
            self.spawn();
        }
    }

    /// Drops the run. The caller must not be polling it.
    pub(super) fn abort(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Ended);
        if let State::Spawned(task) = state {
            task.abort();
        }
    }

    /// Polls the run, if it is not a task. Returns whether it has ended.
    fn poll(&self, context: &mut Context<'_>) -> bool {
        let mut run = {
            let mut state = lock(&self.state);
            match std::mem::replace(&mut *state, State::Polled { spawns: false }) {
                State::Idle(run) => run,
                other => {
                    *state = other;
                    return matches!(*state, State::Ended);
                }
            }
        };
        let is_ended = run.poll_unpin(context).is_ready();
        let mut state = lock(&self.state);
        let spawns = matches!(*state, State::Polled { spawns: true });
        match *state {
            State::Polled { .. } if !is_ended => *state = State::Idle(run),
            _ => *state = State::Ended,
        }
        drop(state);
        if spawns {
            self.spawn();
        }
        is_ended
    }

    /// Polls the run until it sends its outcome to the caller. The rest of the run then becomes a task. Calls `pends`
    /// if the outcome is not ready at the first poll.
    pub(super) async fn outcome<T>(
        &self,
        mut outcome: oneshot::Receiver<T>,
        pends: impl FnOnce(),
    ) -> Result<T, Error> {
        let mut pends = Some(pends);
        let received = poll_fn(|context| {
            let is_ended = self.poll(context);
            let received = outcome.poll_unpin(context);
            if received.is_pending() {
                pends.take().into_iter().for_each(|pends| pends());
            } else if !is_ended {
                self.spawn();
            }
            received
        });
        match received.await {
            Ok(outcome) => Ok(outcome),
            Err(_) => Err(self.why_gone().await),
        }
    }

    /// Takes the state, unless the run is being spawned.
    fn end(&self) -> State {
        let mut state = lock(&self.state);
        match *state {
            State::Polled { spawns } => State::Polled { spawns },
            _ => std::mem::replace(&mut *state, State::Ended),
        }
    }

    /// Returns the error for a run that sent no outcome. Resumes its panic.
    async fn why_gone(&self) -> Error {
        let task = loop {
            match self.end() {
                State::Spawned(task) => break Some(task),
                // Another thread is spawning it.
                State::Polled { .. } => yield_now().await,
                State::Idle(_) | State::Ended => break None,
            }
        };
        if let Some(task) = task
            && let Err(error) = task.await
            && error.is_panic()
        {
            resume_unwind(error.into_panic());
        }
        gone()
    }
}

pub(super) fn gone() -> Error {
    Error::unavailable(
        Cause::Ended,
        "the runtime that ran the flight was shut down",
    )
}

/// The keys that have callers, by their hashes. Two keys with the same hash wait for each other.
#[derive(Debug)]
pub(super) struct Parallel {
    /// `None`: unlimited.
    most: Option<u32>,
    hasher: RandomState,
    /// Each caller of a key shares its semaphore.
    keys: std::sync::Mutex<HashMap<u64, Arc<Semaphore>>>,
}

/// A caller of a key. When the last one is dropped, the key is removed.
#[derive(Debug)]
pub(super) struct Slot {
    parallel: Arc<Parallel>,
    key: u64,
    permit: Option<OwnedSemaphorePermit>,
}

impl Parallel {
    pub(super) fn new(most: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            most,
            hasher: RandomState::new(),
            keys: std::sync::Mutex::default(),
        })
    }

    /// Waits for a permit, in the order of arrival. Cancel safe.
    pub(super) fn enter(
        self: &Arc<Self>,
        key: &Key,
    ) -> impl Future<Output = Option<Slot>> + Send + use<> {
        let entered = self.most.map(|most| {
            let key = self.hasher.hash_one(key);
            let new = || Arc::new(Semaphore::new(most as usize));
            let permits = Arc::clone(lock(&self.keys).entry(key).or_insert_with(new));
            (
                permits,
                Slot {
                    parallel: Arc::clone(self),
                    key,
                    permit: None,
                },
            )
        });
        async move {
            let (permits, mut slot) = entered?;
            // The semaphore is never closed.
            slot.permit = permits.acquire_owned().await.ok();
            Some(slot)
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.permit = None;
        let mut keys = lock(&self.parallel.keys);
        // A waiting or running caller has a reference too.
        if keys
            .get(&self.key)
            .is_some_and(|permits| Arc::strong_count(permits) == 1)
        {
            keys.remove(&self.key);
        }
    }
}
