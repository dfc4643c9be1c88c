//! The lease of a body, with the limits at which it is released.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::LeaseEnd;
use super::timers::Timers;
use crate::store::in_memory::callers_clock;
use crate::sync::lock;
use crate::{Error, Lease};

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) idle_timeout: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) on_lease_end: LeaseEnd,
}

impl Default for Limits {
    fn default() -> Self {
        let idle_timeout = Some(Duration::from_secs(60));
        Self {
            idle_timeout,
            max_hold: None,
            on_lease_end: LeaseEnd::default(),
        }
    }
}

/// A lease that is released at its limits, or when this is dropped.
pub(super) struct TimedLease {
    shared: Arc<Shared>,
    timers: Arc<Timers>,
}

/// The state that the body shares with the timers.
pub(super) struct Shared {
    limits: Limits,
    began: Instant,
    state: Mutex<State>,
}

struct State {
    /// `None` once the lease was released.
    lease: Option<Lease>,
    /// When the body yielded its last frame; before the first frame, when the body began.
    progressed: Instant,
    /// When the timers check the lease next.
    due: Option<Instant>,
    /// The error of the limit at which the lease was released.
    exceeded: Option<Error>,
    /// The waker of the task that polls the body, if an abort must wake it.
    waker: Option<Waker>,
}

impl Limits {
    fn aborts(&self) -> bool {
        self.on_lease_end == LeaseEnd::Abort
    }

    fn idle_until(&self, progressed: Instant) -> Option<Instant> {
        progressed.checked_add(self.idle_timeout?)
    }

    fn max_until(&self, began: Instant) -> Option<Instant> {
        began.checked_add(self.max_hold?)
    }

    /// When the lease of a body is checked next.
    fn next_check(
        &self,
        began: Instant,
        progressed: Instant,
        lease: Option<&Lease>,
    ) -> Option<Instant> {
        let lost = lease.filter(|_| self.aborts()).map(|lease| lease.until());
        [self.idle_until(progressed), self.max_until(began), lost]
            .into_iter()
            .flatten()
            .min()
    }
}

impl TimedLease {
    pub(super) fn new(lease: Lease, limits: Limits, timers: &Arc<Timers>) -> Self {
        let now = callers_clock();
        let began = now.0;
        let due = limits.next_check(began, began, Some(&lease));
        let state = State {
            lease: Some(lease),
            progressed: began,
            due,
            exceeded: None,
            waker: None,
        };
        let shared = Arc::new(Shared {
            limits,
            began,
            state: Mutex::new(state),
        });
        if let Some(due) = due {
            timers.insert(due, Arc::clone(&shared), now);
        }
        Self {
            shared,
            timers: Arc::clone(timers),
        }
    }

    /// Notes that the body has yielded a frame.
    pub(super) fn progressed(&self) {
        lock(&self.shared.state).progressed = Instant::now();
    }

    /// Returns the error when the body must be aborted.
    pub(super) fn poll_abort(&self, context: &Context<'_>) -> Poll<Error> {
        if !self.shared.limits.aborts() {
            return Poll::Pending;
        }
        let mut state = lock(&self.shared.state);
        if let Some(error) = self.shared.end(&state, Instant::now()) {
            return Poll::Ready(error);
        }
        if !state
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(context.waker()))
        {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Shared {
    /// Releases the lease if a limit is reached; otherwise schedules the next check.
    pub(super) fn check(self: &Arc<Self>, now: Instant, timers: &Arc<Timers>) {
        let mut state = lock(&self.state);
        if state.lease.is_none() {
            return;
        }
        let Some(error) = self.end(&state, now) else {
            return self.schedule(&mut state, timers);
        };
        state.exceeded = Some(error.clone());
        let (lease, waker) = (state.lease.take(), state.waker.take());
        drop(state);
        let told = lease.as_deref().filter(|_| !self.limits.aborts()).cloned();
        drop(lease);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(lease) = told {
            lease.state.counts().outlived(&error);
        }
    }

    /// Schedules the next check. The caller holds the lock of the state, so that a lease that is dropped meanwhile
    /// does not stay with the timers.
    fn schedule(self: &Arc<Self>, state: &mut State, timers: &Arc<Timers>) {
        state.due = self
            .limits
            .next_check(self.began, state.progressed, state.lease.as_ref());
        if let Some(due) = state.due {
            timers.insert(due, Arc::clone(self), callers_clock());
        }
    }

    /// Returns why the lease has ended before the body, if it has.
    fn end(&self, state: &State, now: Instant) -> Option<Error> {
        if state.exceeded.is_some() {
            return state.exceeded.clone();
        }
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        if is_over(self.limits.max_until(self.began)) {
            return Some(Error::body_timeout("held for longer than max_hold"));
        }
        if is_over(self.limits.idle_until(state.progressed)) {
            return Some(Error::body_timeout("no progress within idle_timeout"));
        }
        let is_lost =
            self.limits.aborts() && !state.lease.as_ref().is_some_and(|lease| lease.is_held());
        is_lost.then(Error::lost)
    }
}

impl Drop for TimedLease {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        let (lease, due) = (state.lease.take(), state.due.take());
        drop(state);
        if let Some(due) = due {
            self.timers.remove(due, &self.shared);
        }
        drop(lease);
    }
}

impl fmt::Debug for TimedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lock(&self.shared.state).lease.fmt(f)
    }
}
