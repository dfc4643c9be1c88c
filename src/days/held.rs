//! Keys that are always held, without a queue. Holds are shorter than renewals.

use std::collections::VecDeque;
use std::time::Duration;

use super::{HOUR, World, days, in_both};
use crate::{Mutex, Permit, RwLock, WaitGroup};

/// A sixth of the ttl of the leases.
const STEP: Duration = Duration::from_secs(600);
const LIMIT: usize = 3;

async fn permits(mut world: World) {
    let groups = world.each(|store| {
        let builder = WaitGroup::builder(LIMIT as u32).ttl(HOUR).watchdog(false);
        builder.build(store, "permits").unwrap()
    });
    let mut held = VecDeque::new();
    let mut most = 0;
    while world.passed < days() {
        for group in &groups {
            while let Ok(permit) = group.try_add("k").await {
                held.push_back(permit);
            }
        }
        // Read from outside: how many are out at the same time, and how many the store counts.
        most = most.max(held.len());
        let counted = groups[0].count("k").await.unwrap();
        assert_eq!((most, counted), (LIMIT, LIMIT as u32), "after {:?}", world.passed);
        world.skip(STEP);
        assert!(held.pop_front().unwrap().done().await.unwrap(), "it is forgotten after {:?}", world.passed);
    }
    for permit in held {
        assert!(Permit::done(permit).await.unwrap());
    }
    world.ends(&[]).await;
}

async fn mutexes(mut world: World) {
    let mutexes =
        world.each(|store| Mutex::builder().ttl(HOUR).watchdog(false).build(store, "mutex").unwrap());
    let (one, other) = (&mutexes[0], &mutexes[mutexes.len() - 1]);
    let mut fence = 0;
    while world.passed < 4 * days() {
        let guard = one.try_lock("k").await.unwrap();
        assert!(guard.fence() > fence, "{} after {fence}", guard.fence());
        fence = guard.fence();
        world.skip(STEP);
        assert!(other.try_lock("k").await.unwrap_err().is_refused());
        assert!(guard.unlock().await.unwrap());
        // Its fence is kept for days without a holder.
        world.skip(24 * STEP);
    }
    world.ends(&[]).await;
}

async fn readers(mut world: World) {
    let locks = world.each(|store| RwLock::builder().ttl(HOUR).watchdog(false).build(store, "rw").unwrap());
    let (one, other) = (&locks[0], &locks[locks.len() - 1]);
    let writer = one.try_write("k").await.unwrap();
    let fence = writer.fence();
    assert!(writer.release().await.unwrap());
    let mut held = VecDeque::from([one.try_read("k").await.unwrap()]);
    while world.passed < days() {
        held.push_back(other.try_read("k").await.unwrap());
        world.skip(STEP);
        assert!(one.try_write("k").await.unwrap_err().is_refused(), "beside readers, {:?}", world.passed);
        assert!(held.pop_front().unwrap().release().await.unwrap(), "it is forgotten: {:?}", world.passed);
    }
    for reader in held {
        assert!(reader.release().await.unwrap());
    }
    let writer = other.try_write("k").await.unwrap();
    assert!(writer.fence() > fence);
    assert!(writer.release().await.unwrap());
    world.ends(&[]).await;
}

in_both! { permits mutexes readers }
