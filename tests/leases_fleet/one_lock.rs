//! One lock for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tower_distributed::Mutex;

use crate::fleet::{Fleet, store_of_role};
use crate::referee::Referee;
use support::processes::{setting, tell};
use support::role;
use support::size;

const ROOM: &str = "room";
const PROCESSES: u32 = 4;
const TASKS: u32 = 16;

fn acquisitions() -> u32 {
    8_000 * size() as u32
}

// Enters the room `SHARE` times, from many tasks at once, and has the lock of the family `LOCK` while it is there.
role!(role_locker, async {
    let (referee, name) = (Referee::of_role().await, setting("NAME"));
    let mutex = Mutex::new(&store_of_role(), &setting("LOCK")).unwrap();
    let left: Arc<AtomicU32> = Arc::new(setting("SHARE").parse::<u32>().unwrap().into());
    let lockers = (0..TASKS).map(|_| {
        let (referee, name, mutex, left) = (referee.clone(), name.clone(), mutex.clone(), left.clone());
        let take =
            move || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok();
        tokio::spawn(async move {
            while let Some(number) = take() {
                let guard = mutex.lock("k").await.unwrap();
                let visit = referee.enter(ROOM, &format!("{name}.{number}"), 1, &guard).await;
                visit.leave().await;
                visit.settle(guard.unlock().await.unwrap()).await;
            }
        })
    });
    for locker in lockers.collect::<Vec<_>>() {
        locker.await.unwrap();
    }
    tell("done");
});

async fn run(acquisitions: u32, lock_of: impl Fn(u32) -> String) -> Fleet {
    let fleet = Fleet::start().await;
    let share = (acquisitions / PROCESSES).to_string();
    let start = |process| {
        let env = [("SHARE", share.as_str()), ("LOCK", &lock_of(process))];
        fleet.spawn("one_lock::role_locker", &format!("p{process}"), &env)
    };
    let mut players: Vec<_> = (0..PROCESSES).map(start).collect();
    fleet.left(ROOM, acquisitions.into()).await;
    for player in &mut players {
        assert_eq!(player.child.next_line().await, "done");
    }
    fleet
}

#[tokio::test]
async fn a_lock_is_held_by_one_at_a_time_and_its_fences_rise() {
    let fleet = run(acquisitions(), |_| "one".to_owned()).await;
    let verdict = fleet.judge(ROOM, 1).await.unwrap();
    assert_eq!(verdict.visits, acquisitions() as usize);
    assert_eq!(verdict.late, 0);
}

/// The test above is about something: the referee sees who locks something else.
#[tokio::test]
async fn different_locks_are_caught() {
    let fleet = run(400, |process| format!("own{process}")).await;
    fleet.judge(ROOM, 1).await.unwrap_err();
}
