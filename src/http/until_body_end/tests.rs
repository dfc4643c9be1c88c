use std::panic::resume_unwind;

use support::eventually;

use super::*;
use crate::mutex::Mutex;
use crate::store::Store;

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

/// The scheduler misses a lease if it looks too early. The lease must be reported again after the scheduler has found
/// none.
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

/// This includes the leases of other threads that were reported to the scheduler before, with no later body.
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
    let lease = Lease::from(mutex.try_lock("now").await.unwrap()).with_guard(Panics);
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
