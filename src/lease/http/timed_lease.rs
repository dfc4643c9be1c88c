//! The lease of a body, with the limits at which it is released.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::LeaseEnd;
use super::timers::Timers;
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
        Self { idle_timeout, max_hold: None, on_lease_end: LeaseEnd::default() }
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

impl TimedLease {
    pub(super) fn new(lease: Lease, limits: Limits, timers: &Arc<Timers>) -> Self {
        let began = Instant::now();
        let state = State { lease: Some(lease), progressed: began, due: None, exceeded: None, waker: None };
        let shared = Arc::new(Shared { limits, began, state: Mutex::new(state) });
        shared.schedule(&mut lock(&shared.state), timers);
        Self { shared, timers: Arc::clone(timers) }
    }

    /// Notes that the body has yielded a frame.
    pub(super) fn progressed(&self) {
        lock(&self.shared.state).progressed = Instant::now();
    }

    /// Returns the error when the body must be aborted.
    pub(super) fn poll_abort(&self, context: &Context<'_>) -> Poll<Error> {
        if !self.shared.aborts() {
            return Poll::Pending;
        }
        let mut state = lock(&self.shared.state);
        if let Some(error) = self.shared.end(&state, Instant::now()) {
            return Poll::Ready(error);
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
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
        let Some(error) = self.end(&state, now) else { return self.schedule(&mut state, timers) };
        state.exceeded = Some(error.clone());
        let (lease, waker) = (state.lease.take(), state.waker.take());
        drop(state);
        let told = lease.as_deref().filter(|_| !self.aborts()).cloned();
        drop(lease);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(lease) = told {
            lease.state.counts.outlived(&error);
        }
    }

    /// Schedules the next check. The caller holds the lock of the state, so that a lease that is dropped meanwhile
    /// does not stay with the timers.
    fn schedule(self: &Arc<Self>, state: &mut State, timers: &Arc<Timers>) {
        let lost = state.lease.as_ref().filter(|_| self.aborts()).map(|lease| lease.until());
        state.due = [self.idle_until(state), self.max_until(), lost].into_iter().flatten().min();
        if let Some(due) = state.due {
            timers.insert(due, Arc::clone(self));
        }
    }

    /// Returns why the lease has ended before the body, if it has.
    fn end(&self, state: &State, now: Instant) -> Option<Error> {
        if state.exceeded.is_some() {
            return state.exceeded.clone();
        }
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        if is_over(self.max_until()) {
            return Some(Error::body_timeout("held for longer than max_hold"));
        }
        if is_over(self.idle_until(state)) {
            return Some(Error::body_timeout("no progress within idle_timeout"));
        }
        let is_lost = self.aborts() && !state.lease.as_ref().is_some_and(|lease| lease.is_held());
        is_lost.then(Error::lost)
    }

    fn aborts(&self) -> bool {
        self.limits.on_lease_end == LeaseEnd::Abort
    }

    fn idle_until(&self, state: &State) -> Option<Instant> {
        state.progressed.checked_add(self.limits.idle_timeout?)
    }

    fn max_until(&self) -> Option<Instant> {
        self.began.checked_add(self.limits.max_hold?)
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
