//! Holders that are killed.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Lease, Mutex, Store, WaitGroup};

use crate::fleet::{CLAIM, Fleet, LONG, in_time, store_of_role};
use crate::referee::Referee;
use support::eventually;
use support::processes::{setting, tell};
use support::role;

/// All at the same time.
const KILLS: usize = 24;
const TTL: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_millis(500);

/// What is held, and who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lock,
    /// A lock that nobody waits for.
    LonelyLock,
    /// One of two permits.
    Permit,
}

fn kind(number: usize) -> Kind {
    [Kind::Lock, Kind::LonelyLock, Kind::Permit][number % 3]
}

fn mutexes(store: &Store, ttl: Duration) -> Mutex {
    Mutex::builder().ttl(ttl).build(store, "locks").unwrap()
}

fn permits(store: &Store, ttl: Duration) -> WaitGroup {
    WaitGroup::builder(2).ttl(ttl).build(store, "permits").unwrap()
}

// Holds the lock or a permit of `ROOM` until it is killed.
role!(role_holder, async {
    let (referee, room, store) = (Referee::of_role().await, setting("ROOM"), store_of_role());
    let (lock, permit);
    let lease: &Lease = if setting("PERMIT") == "true" {
        permit = permits(&store, TTL).add(room.as_str()).await.unwrap();
        &permit
    } else {
        lock = mutexes(&store, TTL).lock(room.as_str()).await.unwrap();
        &lock
    };
    let visit = referee.enter(&room, &format!("{}.0", setting("NAME")), 1, lease).await;
    tell("holding");
    lease.lost().await;
    // By a process that stood still: a killed one says nothing.
    visit.settle(false).await;
    std::future::pending().await
});

/// Kills a holder, and enters in its place as soon as that is possible.
async fn replace(fleet: &Fleet, number: usize) {
    let (kind, room, store) = (kind(number), &*format!("room{number}"), fleet.store());
    let (mutexes, permits) = (mutexes(&store, LONG), permits(&store, LONG));
    // Who takes the other permit, and stays.
    let mut steady = None;
    if kind == Kind::Permit {
        let permit = permits.add(room).await.unwrap();
        fleet.referee.enter(room, "steady.0", 1, &permit).await;
        steady = Some(permit);
    }
    let env = [("ROOM", room), ("PERMIT", &*steady.is_some().to_string())];
    let mut holder = fleet.spawn("kills::role_holder", &format!("holder{number}"), &env);
    assert_eq!(holder.child.next_line().await, "holding");

    let mut kill_when_one_waits = async |family| {
        fleet.lined_up(family, room, 1).await;
        fleet.kill(&mut holder, &[room]).await;
    };
    let visit = async |lease: &Lease| {
        let visit = fleet.referee.enter(room, "rival.0", 1, lease).await;
        visit.leave().await;
        visit
    };
    let (visit, released) = match kind {
        Kind::Lock => {
            let (guard, ()) = tokio::join!(mutexes.lock(room), kill_when_one_waits("locks"));
            let guard = guard.unwrap();
            (visit(&guard).await, guard.unlock().await)
        }
        Kind::LonelyLock => {
            fleet.kill(&mut holder, &[room]).await;
            let mut guard = None;
            eventually("the lock to be free", LONG, async || {
                guard = mutexes.try_lock(room).await.ok();
                guard.is_some()
            })
            .await;
            let guard = guard.unwrap();
            (visit(&guard).await, guard.unlock().await)
        }
        Kind::Permit => {
            let (permit, ()) = tokio::join!(permits.add(room), kill_when_one_waits("permits"));
            let permit = permit.unwrap();
            (visit(&permit).await, permit.done().await)
        }
    };
    visit.settle(released.unwrap()).await;
    if let Some(permit) = steady {
        assert!(permit.done().await.unwrap(), "the other permit went with the killed one");
    }
}

#[tokio::test]
async fn what_killed_holders_held_is_free_in_time() {
    let fleet = &Fleet::start().await;
    in_time("kills", join_all((0..KILLS).map(|number| replace(fleet, number)))).await;
    let mut kills = 0;
    for number in 0..KILLS {
        let room = format!("room{number}");
        let limit = if kind(number) == Kind::Permit { 2 } else { 1 };
        kills += fleet.judge(&room, limit).await.unwrap().kills;
        let notes = fleet.notes(&room).await;
        let noted = |verb, process| {
            notes.iter().find(|note| note.verb == verb && note.visit.starts_with(process)).unwrap()
        };
        let took = noted("enter", "rival").after(noted("kill", "holder"));
        assert!(
            took < TTL + CLAIM + GRACE,
            "what {:?} {number} held was free only after {took:?}",
            kind(number)
        );
    }
    assert_eq!(kills, KILLS);
}
