//! One lock, used by this library and by rslock, which locks as redsync and Redis's documentation do.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::Mutex;

use crate::fleet::{Fleet, LONG, store_of_role};
use crate::referee::Referee;
use support::eventually;
use support::processes::{setting, tell};
use support::role;

const NAME: &str = "shared-lock";
const EACH: usize = 250;
/// Of either library.
const PROCESSES: usize = 2;
const TTL: Duration = Duration::from_secs(30);
/// Of each process that does not pause: enough that somebody waits all the time.
const TASKS: usize = 4;
/// How many locks each side gets at least where nobody pauses.
const SHARE: usize = 50;
/// How many locks the other side may get meanwhile. Those who ask at random times get by with about as many.
const MOST: usize = 100 * SHARE;

/// Ours, which asks about as often as theirs.
fn ours() -> Mutex {
    let delay = |_| Duration::from_micros(rand::random_range(1..4000));
    let mutex = Mutex::builder().exact_names().ttl(TTL).retry_delay(delay);
    mutex.build(&store_of_role(), "ours").unwrap()
}

fn theirs() -> rslock::LockManager {
    let mut manager = rslock::LockManager::new(vec![setting("URL")]);
    manager.set_retry(u32::MAX, Duration::from_millis(4));
    manager
}

/// Somebody else's turn.
async fn pause() {
    tokio::time::sleep(Duration::from_micros(rand::random_range(0..6000))).await;
}

role!(role_ours, async {
    let (referee, name) = (Referee::of_role().await, setting("NAME"));
    let mutex = ours();
    for number in 0..EACH {
        let guard = mutex.lock(NAME).await.unwrap();
        let visit = referee.enter(NAME, &format!("{name}.{number}"), 1, &guard).await;
        visit.leave().await;
        assert!(guard.unlock().await.unwrap(), "theirs has unlocked ours");
        pause().await;
    }
    tell("done");
});

role!(role_theirs, async {
    let (referee, name) = (Referee::of_role().await, setting("NAME"));
    let manager = theirs();
    for number in 0..EACH {
        let lock = manager.acquire_no_guard(NAME, TTL).await.unwrap();
        let visit = format!("{name}.{number}");
        referee.note(NAME, "enter", &format!("{visit} 1")).await;
        referee.note(NAME, "leave", &visit).await;
        assert!(!manager.is_freed(&lock).await.unwrap(), "ours has unlocked theirs");
        lock.release().await;
        pause().await;
    }
    tell("done");
});

#[tokio::test]
async fn our_locks_and_those_of_rslock_exclude_each_other() {
    let fleet = Fleet::start().await;
    let start = |number: usize| {
        [("ours", "foreign::role_ours"), ("theirs", "foreign::role_theirs")]
            .map(|(name, role)| fleet.spawn(role, &format!("{name}{number}"), &[]))
    };
    for mut player in (0..PROCESSES).flat_map(start).collect::<Vec<_>>() {
        assert_eq!(player.child.next_line().await, "done");
    }
    let verdict = fleet.judge(NAME, 1).await.unwrap();
    assert_eq!((verdict.visits, verdict.late), (2 * PROCESSES * EACH, 0));
    // It was not one after the other: the lock went from one library to the other all the time.
    let changes =
        verdict.entered.windows(2).filter(|pair| pair[0].starts_with("ours") != pair[1].starts_with("ours"));
    let changes = changes.count();
    assert!(changes > 100, "only {changes} changes");
}

/// Waits until all processes run.
async fn begin_together() -> Referee {
    let referee = Referee::of_role().await;
    tell("ready");
    assert_eq!(referee.next_order(&setting("NAME")).await, "begin");
    referee
}

// Locks again as soon as it has unlocked, until it is killed.
role!(role_greedy_ours, async {
    let (referee, mutex) = (&begin_together().await, &ours());
    let lock = async || loop {
        let guard = mutex.lock(NAME).await.unwrap();
        referee.note(NAME, "ours", &setting("NAME")).await;
        assert!(guard.unlock().await.unwrap(), "theirs has unlocked ours");
    };
    join_all((0..TASKS).map(|_| lock())).await;
});

role!(role_greedy_theirs, async {
    let (referee, manager) = (&begin_together().await, &theirs());
    let lock = async || loop {
        let lock = manager.acquire_no_guard(NAME, TTL).await.unwrap();
        referee.note(NAME, "theirs", &setting("NAME")).await;
        lock.release().await;
    };
    join_all((0..TASKS).map(|_| lock())).await;
});

#[tokio::test]
async fn neither_library_starves_the_other() {
    let fleet = Fleet::start().await;
    let mut players: Vec<_> = (0..PROCESSES)
        .flat_map(|number| [("ours", number), ("theirs", number)])
        .map(|(side, number)| {
            fleet.spawn(&format!("foreign::role_greedy_{side}"), &format!("{side}{number}"), &[])
        })
        .collect();
    for player in &mut players {
        assert_eq!(player.child.next_line().await, "ready");
    }
    for player in &players {
        fleet.referee.order(&player.name, "begin").await;
    }
    eventually("locks of both sides", 4 * LONG, async || {
        let (ours, theirs) =
            (fleet.referee.count(NAME, "ours").await, fleet.referee.count(NAME, "theirs").await);
        ours.min(theirs) >= SHARE as u64 || ours.max(theirs) > MOST as u64
    })
    .await;
    let notes = fleet.notes(NAME).await;
    for side in ["ours", "theirs"] {
        let before = notes.iter().enumerate().filter(|(_, note)| note.verb == side).nth(SHARE - 1);
        let all = before.map_or(notes.len(), |(position, _)| position + 1);
        let own = notes.iter().take(all).filter(|note| note.verb == side).count();
        let other = all - own;
        assert!(other <= MOST, "{side}: {own} locks, while the other side got {other}");
    }
}
