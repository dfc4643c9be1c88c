//! Holders that are killed.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tower_distributed::{Lease, Mutex, Store, WaitGroup};

use crate::fleet::{Fleet, LONG, in_time, store_of_role};
use crate::referee::Referee;
use support::eventually;
use support::processes::{setting, tell};
use support::role;

const KILLS: usize = 50;
/// How many at a time.
const WAVE: usize = 25;
const TTL: Duration = Duration::from_secs(1);
/// How long a grant to a waiter stands until it confirms it.
const CLAIM: Duration = Duration::from_millis(1500);
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
    for wave in (0..KILLS).collect::<Vec<_>>().chunks(WAVE) {
        in_time("kills", join_all(wave.iter().map(|number| replace(fleet, *number)))).await;
    }
    let mut kills = 0;
    for number in 0..KILLS {
        let room = format!("room{number}");
        let limit = if kind(number) == Kind::Permit { 2 } else { 1 };
        kills += fleet.judge(&room, limit).await.unwrap().kills;
        let notes = fleet.notes(&room).await;
        let at = |verb, process| {
            notes.iter().find(|note| note.verb == verb && note.visit.starts_with(process)).unwrap().at
        };
        let took = at("enter", "rival") - at("kill", "holder");
        let took = Duration::from_micros(took.try_into().unwrap_or(0));
        assert!(
            took < TTL + CLAIM + GRACE,
            "what {:?} {number} held was free only after {took:?}",
            kind(number)
        );
    }
    assert_eq!(kills, KILLS);
}

/// Locks of holders that are gone, so many that somebody asks in the last millisecond of some.
#[tokio::test]
async fn locks_that_run_out_go_on_to_those_who_wait() {
    let fleet = &Fleet::start().await;
    let mutex = &mutexes(&fleet.store(), LONG);
    let take = async |number: u64| {
        let (key, left) = (format!("k{number}"), Duration::from_millis(300 + number));
        fleet.set(&format!("td:{{locks:{key}}}:lock"), "gone", left).await;
        let began = Instant::now();
        let guard = mutex.lock(key.as_str()).await.unwrap();
        let late = began.elapsed().saturating_sub(left);
        assert!(guard.unlock().await.unwrap());
        late
    };
    let mut late = in_time("locks", join_all((0..400).map(take))).await;
    late.sort();
    println!("got after they ran out: {:?}, at most {:?}", late[200], late[399]);
}
