//! The timers of all bodies of a layer. They run even if no task polls a body.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;

use super::timed_lease::Shared;
use crate::store::background::Background;
use crate::store::{Link, PeriodicTask, Scheduler, Signal};
use crate::sync::{Stripes, lock};

/// A part of the timers of a layer. A frame does not reschedule a lease; the check takes the progress into account when it is
/// due.
pub(super) struct Timers {
    scheduler: Arc<Scheduler>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The leases, sorted by the time of their next check.
    leases: BTreeMap<(Instant, Address), Arc<Shared>>,
    /// When the scheduler looks at them again, at the latest; `None`: it does not.
    planned: Option<Instant>,
    /// Whether the clock of a caller was not the system's. Then the scheduler is told of each lease, since it runs in several
    /// places.
    strayed: bool,
}

/// Distinguishes leases that are due at the same time.
type Address = usize;

impl Timers {
    /// Creates the timers of a layer.
    pub(super) fn stripes() -> Arc<Stripes<Arc<Self>>> {
        let no_pushes = watch::channel(Link::Down).1;
        let scheduler = Scheduler::new(no_pushes, Background::thread(), true);
        let timers = || {
            Arc::new(Self {
                scheduler: Arc::clone(&scheduler),
                state: Mutex::default(),
            })
        };
        let stripes = Stripes::new(timers);
        stripes.iter().for_each(|timers| scheduler.join(timers));
        Arc::new(stripes)
    }

    /// `now`: by the clock of the caller, and whether that is the system's.
    pub(super) fn insert(
        &self,
        due: Instant,
        lease: Arc<Shared>,
        (now, is_the_systems): (Instant, bool),
    ) {
        let mut state = lock(&self.state);
        state.leases.insert((due, address(&lease)), lease);
        state.strayed |= !is_the_systems;
        let is_planned = state
            .planned
            .is_some_and(|planned| now < planned && planned <= due);
        if is_planned && !state.strayed {
            return;
        }
        state.planned = Some(due);
        drop(state);
        self.scheduler.schedule(due);
    }

    pub(super) fn remove(&self, due: Instant, lease: &Arc<Shared>) {
        lock(&self.state).leases.remove(&(due, address(lease)));
    }

    fn pop(&self, now: Instant) -> Option<Arc<Shared>> {
        let mut state = lock(&self.state);
        state
            .leases
            .first_entry()
            .filter(|first| first.key().0 <= now)
            .map(|first| first.remove())
    }
}

fn address(lease: &Arc<Shared>) -> Address {
    Arc::as_ptr(lease).addr()
}

impl PeriodicTask for Timers {
    fn due(&self) -> Option<Instant> {
        let mut state = lock(&self.state);
        state.planned = state.leases.first_key_value().map(|((due, _), _)| *due);
        state.planned
    }

    fn signal(self: Arc<Self>, _: Signal) {
        let now = Instant::now();
        while let Some(lease) = self.pop(now) {
            // A waker, or what the lease holds, may panic. The others end in time all the same.
            drop(catch_unwind(AssertUnwindSafe(|| lease.check(now, &self))));
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
    use std::panic::resume_unwind;
    use std::time::Duration;

    use support::eventually;

    use super::super::timed_lease::{Limits, TimedLease};
    use super::*;
    use crate::{Lease, Mutex, Store};

    fn timers() -> Arc<Timers> {
        Arc::clone(&Timers::stripes()[0])
    }

    /// A body that makes no progress for this long loses its lease.
    async fn body(mutex: &Mutex, key: &str, idle: Duration, timers: &Arc<Timers>) -> TimedLease {
        let lease = mutex.try_lock(key).await.unwrap().into();
        TimedLease::new(
            lease,
            Limits {
                idle_timeout: Some(idle),
                ..Limits::default()
            },
            timers,
        )
    }

    async fn is_released(mutex: &Mutex, key: &str) {
        let is_free = async || mutex.try_lock(key).await.is_ok();
        eventually("the end of the lease", Duration::from_secs(20), is_free).await;
    }

    /// The scheduler is not told of a lease if it looks before. It must be told again once it has looked, and found none.
    #[tokio::test]
    async fn leases_end_that_come_while_the_scheduler_sleeps_and_after() {
        let (mutex, timers) = (Mutex::new(&Store::in_memory(), "m").unwrap(), timers());
        let ms = Duration::from_millis;
        for _ in 0..4 {
            let first = body(&mutex, "first", ms(20), &timers).await;
            let next = body(&mutex, "next", ms(40), &timers).await;
            drop(first);
            is_released(&mutex, "next").await;
            drop(next);
            let sleeps = async || {
                lock(&timers.state)
                    .planned
                    .is_none_or(|planned| planned < Instant::now())
            };
            eventually("the scheduler", Duration::from_secs(20), sleeps).await;
        }
    }

    /// A body that begins after a test has paused the clock ends by that clock, also if the timers look later by another.
    #[tokio::test]
    async fn timers_follow_a_clock_that_was_paused_meanwhile() {
        let mutex = Mutex::builder()
            .ttl(Duration::from_secs(600))
            .build(&Store::in_memory(), "m")
            .unwrap();
        let (timers, minute) = (timers(), Duration::from_secs(60));
        let _first = body(&mutex, "a", minute, &timers).await;
        let is_planned = async || lock(&timers.state).planned.is_some();
        eventually("the first plan", Duration::from_secs(20), is_planned).await;
        tokio::time::pause();
        let _second = body(&mutex, "b", minute, &timers).await;
        assert!(mutex.try_lock("b").await.is_err());
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(
            mutex.try_lock("b").await.is_ok(),
            "after 60 s without progress"
        );
    }

    /// Also those of other threads, of which the scheduler was told before, and with no body that comes after.
    #[tokio::test]
    async fn timers_go_on_after_a_panic() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                // Without a backtrace: to print one takes the thread of all stores from other tests.
                resume_unwind(Box::new("this panic is part of the test"));
            }
        }
        let (mutex, stripes) = (
            Mutex::new(&Store::in_memory(), "m").unwrap(),
            Timers::stripes(),
        );
        let ms = Duration::from_millis;
        let later = body(&mutex, "later", ms(200), &stripes[1]).await;
        let limits = Limits {
            idle_timeout: Some(ms(1)),
            ..Limits::default()
        };
        let lease = Lease::from(mutex.try_lock("now").await.unwrap()).beside(Panics);
        let panics = TimedLease::new(lease, limits, &stripes[0]);
        is_released(&mutex, "now").await;
        is_released(&mutex, "later").await;
        drop((panics, later));
    }

    #[tokio::test]
    async fn the_timer_of_a_body_ends_with_it() {
        let mutex = Mutex::new(&Store::in_memory(), "m").unwrap();
        let (timers, mut leases) = (timers(), Vec::new());
        for key in ["a", "b"] {
            let lease = Lease::from(mutex.try_lock(key).await.unwrap());
            leases.push(TimedLease::new(lease, Limits::default(), &timers));
        }
        while let Some(lease) = leases.pop() {
            assert_eq!(lock(&timers.state).leases.len(), leases.len() + 1);
            drop(lease);
        }
        assert_eq!(timers.due(), None);
        assert!(mutex.try_lock("a").await.is_ok(), "they are released");
    }
}
