//! The timers of all bodies of a layer. They run even if no task polls a body.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;

use super::timed_lease::Shared;
use crate::store::background::Background;
use crate::store::{Checks, Link, PeriodicTask, Scheduler, Signal};
use crate::sync::lock;

/// The leases, sorted by the time of their next check. A frame does not reschedule a lease; the check takes the
/// progress into account when it is due.
pub(super) struct Timers {
    scheduler: Arc<Scheduler>,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    due: BTreeMap<(Instant, Address), Arc<Shared>>,
    /// When the scheduler was told to look next: not later than it does.
    planned: Option<Instant>,
    checks: Checks,
    /// Whether a test has paused the clock of a caller.
    strayed: bool,
}

/// Distinguishes leases that are due at the same time.
type Address = usize;

impl Timers {
    pub(super) fn new() -> Arc<Self> {
        let no_pushes = watch::channel(Link::Down).1;
        let scheduler = Scheduler::new(no_pushes, Background::thread(), true);
        let timers = Arc::new(Self { scheduler, began: Instant::now(), state: Mutex::default() });
        timers.scheduler.join(&timers);
        timers
    }

    pub(super) fn insert(&self, due: Instant, lease: Arc<Shared>) {
        let mut state = lock(&self.state);
        state.due.insert((due, address(&lease)), lease);
        // Most are due after others. But the scheduler must follow the clock of each test that has paused it.
        let strays = state.checks.find_stray((due - self.began).as_micros() as i64);
        state.strayed |= strays;
        if state.strayed || state.planned.is_none_or(|planned| due < planned) {
            drop(state);
            self.scheduler.schedule(due);
        }
    }

    pub(super) fn remove(&self, due: Instant, lease: &Arc<Shared>) {
        lock(&self.state).due.remove(&(due, address(lease)));
    }

    fn pop(&self, now: Instant) -> Option<Arc<Shared>> {
        let due = &mut lock(&self.state).due;
        due.first_entry().filter(|first| first.key().0 <= now).map(|first| first.remove())
    }
}

fn address(lease: &Arc<Shared>) -> Address {
    Arc::as_ptr(lease).addr()
}

impl PeriodicTask for Timers {
    fn due(&self) -> Option<Instant> {
        let mut state = lock(&self.state);
        state.planned = state.due.first_key_value().map(|((due, _), _)| *due);
        state.planned
    }

    fn signal(self: Arc<Self>, _: Signal) {
        let now = Instant::now();
        while let Some(lease) = self.pop(now) {
            lease.check(now, &self);
        }
    }
}

/// Lets the scheduler's task end.
impl Drop for Timers {
    fn drop(&mut self) {
        self.scheduler.look_again();
    }
}

debug!(Timers);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::timed_lease::{Limits, TimedLease};
    use super::*;
    use crate::{Lease, Mutex, Store};

    #[tokio::test]
    async fn the_timer_of_a_body_ends_with_it() {
        let mutex = Mutex::new(&Store::in_memory(), "m").unwrap();
        let (timers, mut leases) = (Timers::new(), Vec::new());
        for key in ["a", "b"] {
            let lease = Lease::from(mutex.try_lock(key).await.unwrap());
            leases.push(TimedLease::new(lease, Limits::default(), &timers));
        }
        while let Some(lease) = leases.pop() {
            assert_eq!(lock(&timers.state).due.len(), leases.len() + 1);
            drop(lease);
        }
        assert_eq!(timers.due(), None);
        assert!(mutex.try_lock("a").await.is_ok(), "they are released");
    }

    /// A body that begins after a test has paused the clock ends by that clock, also if the timers look later by another.
    #[tokio::test]
    async fn timers_follow_a_clock_that_was_paused_meanwhile() {
        let mutex = Mutex::builder().ttl(Duration::from_secs(600)).build(&Store::in_memory(), "m").unwrap();
        let timers = Timers::new();
        let body = async |key: &str| {
            TimedLease::new(mutex.try_lock(key).await.unwrap().into(), Limits::default(), &timers)
        };
        let _first = body("a").await;
        let is_planned = async || lock(&timers.state).planned.is_some();
        support::eventually("the first plan", Duration::from_secs(20), is_planned).await;
        tokio::time::pause();
        let _second = body("b").await;
        assert!(mutex.try_lock("b").await.is_err());
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(mutex.try_lock("b").await.is_ok(), "after 60 s without progress");
    }
}
