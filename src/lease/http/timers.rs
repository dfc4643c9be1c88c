//! The timers of all bodies of a layer. They run even if no task polls a body.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;

use super::timed_lease::Shared;
use crate::store::background::Background;
use crate::store::{Link, PeriodicTask, Scheduler, Signal};
use crate::sync::lock;

/// The leases, sorted by the time of their next check. A frame does not reschedule a lease; the check takes the
/// progress into account when it is due.
pub(super) struct Timers {
    scheduler: Arc<Scheduler>,
    due: Mutex<BTreeMap<(Instant, Address), Arc<Shared>>>,
}

/// Distinguishes leases that are due at the same time.
type Address = usize;

impl Timers {
    pub(super) fn new() -> Arc<Self> {
        let no_pushes = watch::channel(Link::Down).1;
        let scheduler = Scheduler::new(no_pushes, Background::thread(), true);
        let timers = Arc::new(Self { scheduler, due: Mutex::default() });
        timers.scheduler.join(&timers);
        timers
    }

    pub(super) fn insert(&self, due: Instant, lease: Arc<Shared>) {
        lock(&self.due).insert((due, address(&lease)), lease);
        self.scheduler.schedule(due);
    }

    pub(super) fn remove(&self, due: Instant, lease: &Arc<Shared>) {
        lock(&self.due).remove(&(due, address(lease)));
    }

    fn pop(&self, now: Instant) -> Option<Arc<Shared>> {
        let mut due = lock(&self.due);
        due.first_entry().filter(|first| first.key().0 <= now).map(|first| first.remove())
    }
}

fn address(lease: &Arc<Shared>) -> Address {
    Arc::as_ptr(lease).addr()
}

impl PeriodicTask for Timers {
    fn due(&self) -> Option<Instant> {
        lock(&self.due).first_key_value().map(|((due, _), _)| *due)
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
            assert_eq!(lock(&timers.due).len(), leases.len() + 1);
            drop(lease);
        }
        assert_eq!(timers.due(), None);
        assert!(mutex.try_lock("a").await.is_ok(), "they are released");
    }
}
