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
    fn next_check(&self, began: Instant, progressed: Instant, lease: Option<&Lease>) -> Option<Instant> {
        let lost = lease.filter(|_| self.aborts()).map(|lease| lease.until());
        [self.idle_until(progressed), self.max_until(began), lost].into_iter().flatten().min()
    }
}

impl TimedLease {
    pub(super) fn new(lease: Lease, limits: Limits, timers: &Arc<Timers>) -> Self {
        let now = callers_clock();
        let began = now.0;
        let due = limits.next_check(began, began, Some(&lease));
        let state = State { lease: Some(lease), progressed: began, due, exceeded: None, waker: None };
        let shared = Arc::new(Shared { limits, began, state: Mutex::new(state) });
        if let Some(due) = due {
            timers.insert(due, Arc::clone(&shared), now);
        }
        Self { shared, timers: Arc::clone(timers) }
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
        state.due = self.limits.next_check(self.began, state.progressed, state.lease.as_ref());
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
        let is_lost = self.limits.aborts() && !state.lease.as_ref().is_some_and(|lease| lease.is_held());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::PeriodicTask as _;
    use crate::{Mutex as Locks, Store};

    const NANO: Duration = Duration::from_nanos(1);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn locks() -> Locks {
        Locks::new(&Store::in_memory(), "m").unwrap()
    }

    async fn body(locks: &Locks, idle: Option<u64>, max: Option<u64>, on_lease_end: LeaseEnd) -> TimedLease {
        let limits = Limits { idle_timeout: idle.map(s), max_hold: max.map(s), on_lease_end };
        TimedLease::new(locks.try_lock("k").await.unwrap().into(), limits, &Timers::stripes()[0])
    }

    #[tokio::test]
    async fn a_lease_ends_at_the_first_limit() {
        for (idle, max, due, after, why) in [
            (Some(60), None, Some(60), s(60) - NANO, ""),
            (Some(60), None, Some(60), s(60), "no progress"),
            (Some(60), Some(30), Some(30), s(30) - NANO, ""),
            (Some(60), Some(30), Some(30), s(30), "max_hold"),
            (Some(60), Some(90), Some(60), s(90), "max_hold"),
            (None, None, None, s(9999), ""),
        ] {
            let body = body(&locks(), idle, max, LeaseEnd::Detach).await;
            let (shared, state) = (&body.shared, lock(&body.shared.state));
            assert_eq!(state.due.map(|due| due - shared.began), due.map(s));
            let ended = shared.end(&state, shared.began + after).map(|error| error.to_string());
            assert_eq!(ended.is_some(), !why.is_empty(), "{idle:?} {max:?} {after:?}");
            assert!(ended.is_none_or(|error| error.contains(why)), "{why}");
        }
    }

    /// The check at the first limit takes the progress into account.
    #[tokio::test]
    async fn a_body_that_makes_progress_keeps_its_lease() {
        let locks = locks();
        let body = body(&locks, Some(60), Some(90), LeaseEnd::Detach).await;
        let (began, timers) = (body.shared.began, Arc::clone(&body.timers));
        while Instant::now() == began {}
        body.progressed();
        assert!(lock(&body.shared.state).progressed > began);
        lock(&body.shared.state).progressed = began + s(10);
        for (after, due) in [(60, Some(70)), (69, Some(70)), (70, Some(70))] {
            assert!(locks.try_lock("k").await.is_err());
            body.shared.check(began + s(after), &timers);
            assert_eq!(lock(&body.shared.state).due, due.map(|due| began + s(due)));
        }
        assert!(locks.try_lock("k").await.is_ok(), "it is released");
    }

    /// The timers end leases whose bodies nobody polls, also several at the same time.
    #[tokio::test]
    async fn timers_end_what_is_due() {
        let (locks, limits) = (locks(), Limits { idle_timeout: None, ..Limits::default() });
        let timers = Arc::clone(&Timers::stripes()[0]);
        let mut bodies = Vec::new();
        for key in ["a", "b", "c"] {
            let lease = locks.try_lock(key).await.unwrap().into();
            bodies.push(TimedLease::new(lease, limits, &timers));
        }
        let due = Instant::now() + s(60);
        for body in &bodies {
            timers.insert(due, Arc::clone(&body.shared), callers_clock());
        }
        timers.remove(due, &bodies[0].shared);
        timers.remove(due, &bodies[1].shared);
        assert_eq!(timers.due(), Some(due), "the third one");
        let lease = locks.try_lock("k").await.unwrap().into();
        let limits = Limits { idle_timeout: Some(NANO), ..limits };
        let _idle = TimedLease::new(lease, limits, &timers);
        let is_free = async || locks.try_lock("k").await.is_ok();
        support::eventually("the limit", s(20), is_free).await;
        assert!(locks.try_lock("a").await.is_err());
    }

    #[tokio::test]
    async fn a_body_is_aborted_with_its_lease() {
        let context = Context::from_waker(Waker::noop());
        for on_lease_end in [LeaseEnd::Detach, LeaseEnd::Abort] {
            let (locks, aborts) = (locks(), on_lease_end == LeaseEnd::Abort);
            let is_aborted = |body: &TimedLease| match body.poll_abort(&context) {
                Poll::Ready(error) => Some(error.is_lost()),
                Poll::Pending => None,
            };
            let late = body(&locks, Some(60), None, on_lease_end).await;
            assert_eq!((is_aborted(&late), lock(&late.shared.state).waker.is_some()), (None, aborts));
            late.shared.check(late.shared.began + s(60), &Timers::stripes()[0]);
            assert_eq!(is_aborted(&late), aborts.then_some(false), "at the limit");

            let lost = body(&locks, None, None, on_lease_end).await;
            assert_eq!(lock(&lost.shared.state).due.is_some(), aborts, "its loss is looked for");
            lock(&lost.shared.state).lease.as_deref().unwrap().state.lose();
            assert_eq!(is_aborted(&lost), aborts.then_some(true));
        }
    }
}
