//! One lock, used by this library and by rslock, which locks as redsync and Redis's documentation do.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::Mutex;

use crate::fleet::{Fleet, Referee, store_of_role};
use support::eventually;
use support::processes::{setting, tell};
use support::role;

const NAME: &str = "shared-lock";
/// Of either library.
const PROCESSES: usize = 2;
/// Of each process: enough that somebody waits all the time.
const TASKS: usize = 4;
const TTL: Duration = Duration::from_secs(30);
/// How many locks each side gets at least.
const SHARE: usize = 100;
/// How many locks the other side may get meanwhile. Those who ask at random times get by with about as many.
const MOST: usize = 50 * SHARE;
const LONG: Duration = Duration::from_secs(600);

/// Waits until all processes run.
async fn begin_together() -> Referee {
    let referee = Referee::of_role().await;
    tell("ready");
    let _: Vec<String> = referee.ask(&["BLPOP", "begin", "0"]).await;
    referee
}

// Asks about as often as theirs. Locks again as soon as it has unlocked, until it is killed.
role!(role_ours, async {
    let referee = &begin_together().await;
    let delay = |_| Duration::from_micros(rand::random_range(1..4000));
    let mutex = Mutex::builder().exact_names().ttl(TTL).retry_delay(delay);
    let mutex = &mutex.build(&store_of_role(), "ours").unwrap();
    let lock_again_and_again = async |task: usize| loop {
        let guard = mutex.lock(NAME).await.unwrap();
        referee
            .visit(&format!("ours {} {task}", setting("NUMBER")))
            .await;
        assert!(guard.unlock().await.unwrap(), "theirs has unlocked ours");
    };
    join_all((0..TASKS).map(lock_again_and_again)).await;
});

role!(role_theirs, async {
    let referee = &begin_together().await;
    let mut manager = rslock::LockManager::new(vec![setting("URL")]);
    manager.set_retry(u32::MAX, Duration::from_millis(4));
    let manager = &manager;
    let lock_again_and_again = async |task: usize| loop {
        let lock = manager.acquire_no_guard(NAME, TTL).await.unwrap();
        referee
            .visit(&format!("theirs {} {task}", setting("NUMBER")))
            .await;
        assert!(
            !manager.is_freed(&lock).await.unwrap(),
            "ours has unlocked theirs"
        );
        lock.release().await;
    };
    join_all((0..TASKS).map(lock_again_and_again)).await;
});

/// And neither library starves the other.
#[tokio::test]
async fn our_locks_and_those_of_rslock_exclude_each_other() {
    let fleet = Fleet::start().await;
    let mut children = Vec::new();
    for number in 0..PROCESSES {
        for role in ["foreign::role_ours", "foreign::role_theirs"] {
            let mut child = fleet.spawn(role, &[("NUMBER", &number.to_string())]);
            assert_eq!(child.next_line().await, "ready");
            children.push(child);
        }
    }
    for _ in &children {
        fleet.referee.query::<u64>(&["RPUSH", "begin", ""]).unwrap();
    }
    let mut notes = Vec::new();
    let locks = |notes: &[String], side| notes.iter().filter(|note| note.starts_with(side)).count();
    eventually("locks of both sides", LONG, async || {
        notes = fleet
            .referee
            .query::<Vec<String>>(&["LRANGE", "notes", "0", "-1"])
            .unwrap();
        let (ours, theirs) = (locks(&notes, "enter ours "), locks(&notes, "enter theirs "));
        ours.min(theirs) >= SHARE || ours.max(theirs) > MOST
    })
    .await;
    for visit in notes.chunks_exact(2) {
        let who = visit[0]
            .strip_prefix("enter ")
            .unwrap_or_else(|| panic!("{visit:?}"));
        assert_eq!(visit[1], format!("leave {who}"), "two holders at a time");
    }
    for (side, other) in [
        ("enter ours ", "enter theirs "),
        ("enter theirs ", "enter ours "),
    ] {
        let of_side = notes
            .iter()
            .enumerate()
            .filter(|(_, note)| note.starts_with(side));
        let until = of_side
            .map(|(at, _)| at)
            .nth(SHARE - 1)
            .unwrap_or(notes.len());
        let others = locks(&notes[..until], other);
        assert!(
            others <= MOST,
            "{side}: {SHARE} locks at most, while the other side got {others}"
        );
    }
}
