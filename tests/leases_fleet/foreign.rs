//! One lock, used by this library and by rslock, which locks as redsync and Redis's documentation do.

use std::time::Duration;

use tower_distributed::Mutex;

use crate::fleet::{Fleet, store_of_role};
use crate::referee::Referee;
use crate::support::processes::{is_child, setting, tell};

const NAME: &str = "shared-lock";
const EACH: usize = 250;
/// Of either library.
const PROCESSES: usize = 2;
const TTL: Duration = Duration::from_secs(30);

/// Somebody else's turn.
async fn pause() {
    tokio::time::sleep(Duration::from_micros(rand::random_range(0..6000))).await;
}

#[tokio::test]
#[ignore = "a role, started by the tests"]
async fn role_ours() {
    if !is_child() {
        return;
    }
    let (referee, name) = (Referee::of_role().await, setting("NAME"));
    let mutex = Mutex::builder().exact_names().ttl(TTL).retry_delay(Duration::from_millis(2));
    let mutex = mutex.build(&store_of_role(), "ours").unwrap();
    for number in 0..EACH {
        let guard = mutex.lock(NAME).await.unwrap();
        let visit = referee.enter(NAME, &format!("{name}.{number}"), 1, &guard).await;
        visit.leave().await;
        assert!(guard.unlock().await.unwrap(), "theirs has unlocked ours");
        pause().await;
    }
    tell("done");
}

#[tokio::test]
#[ignore = "a role, started by the tests"]
async fn role_theirs() {
    if !is_child() {
        return;
    }
    let (referee, name) = (Referee::of_role().await, setting("NAME"));
    let mut manager = rslock::LockManager::new(vec![setting("URL")]);
    manager.set_retry(u32::MAX, Duration::from_millis(4));
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
}

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
