//! Readers against a stream of writers, and the other way round.

use futures::future;
use tower_distributed::RwLock;

use crate::fleet::{Fleet, LONG, Player, in_time};
use crate::read_write::{READER, WRITER, locks};
use support::eventually;

const ROOM: &str = "room";
const TASKS: usize = 8;
const ROUNDS: usize = 10;
/// How many writers go before readers that wait, unless it is set.
const MOST_WRITERS: usize = 16;

/// A process that reads or writes all the time, in many tasks.
fn stream(fleet: &Fleet, name: &str, writes: &str) -> Player {
    let env = [("TASKS", &*TASKS.to_string()), ("WRITES", writes), ("UNTIL", "1000000000")];
    fleet.spawn("read_write::role_worker", name, &env)
}

/// For each that enters by this name, how many have entered since somebody was seen to wait.
async fn passed(fleet: &Fleet, name: &str) -> Vec<usize> {
    let (mut all, mut passed) = (Vec::new(), 0);
    for note in fleet.notes(ROOM).await {
        match note.verb.as_str() {
            "seen" => passed = 0,
            "enter" if note.visit.starts_with(name) => all.push(passed),
            "enter" => passed += 1,
            _ => {}
        }
    }
    all
}

async fn read(fleet: &Fleet, lock: &RwLock, visit: &str) {
    let guard = lock.read("k").await.unwrap();
    let visit = fleet.referee.enter(ROOM, visit, READER, &guard).await;
    visit.leave().await;
    visit.settle(guard.release().await.unwrap()).await;
}

async fn write(fleet: &Fleet, lock: &RwLock, visit: &str) {
    let guard = lock.write("k").await.unwrap();
    let visit = fleet.referee.enter(ROOM, visit, WRITER, &guard).await;
    visit.leave().await;
    visit.settle(guard.release().await.unwrap()).await;
}

/// Notes when somebody waits whose token contains `mode`.
async fn see(fleet: &Fleet, mode: &str) {
    eventually(mode, LONG, async || {
        fleet.waiting("documents", "k").await.iter().any(|token| token.contains(mode))
    })
    .await;
    fleet.referee.note(ROOM, "seen", "parent.0").await;
}

#[tokio::test]
async fn no_more_than_16_writers_go_before_readers_that_wait() {
    let fleet = Fleet::start().await;
    let lock = locks(&fleet.store(), LONG);
    let _writers = ["w0", "w1"].map(|name| stream(&fleet, name, "100"));
    for round in 1..=ROUNDS {
        fleet.left(ROOM, round as u64 * 50).await;
        // While this is held nobody enters.
        let guard = lock.write("k").await.unwrap();
        let seen = async {
            see(&fleet, "/r").await;
            assert!(guard.release().await.unwrap());
        };
        let visit = format!("parent.{round}");
        in_time("a reader", future::join(read(&fleet, &lock, &visit), seen)).await;
    }
    fleet.judge(ROOM, WRITER).await.unwrap();
    let passed = passed(&fleet, "parent").await;
    assert!(passed.len() == ROUNDS && passed.iter().all(|passed| *passed <= MOST_WRITERS), "{passed:?}");
}

#[tokio::test]
async fn no_reader_goes_before_a_writer_that_waits() {
    let fleet = Fleet::start().await;
    let lock = locks(&fleet.store(), LONG);
    let _readers = ["r0", "r1"].map(|name| stream(&fleet, name, "0"));
    for round in 1..=ROUNDS {
        fleet.left(ROOM, round as u64 * 50).await;
        // While this is held no writer enters.
        let guard = lock.read("k").await.unwrap();
        let seen = async {
            see(&fleet, "/w").await;
            assert!(guard.release().await.unwrap());
        };
        let visit = format!("parent.{round}");
        in_time("a writer", future::join(write(&fleet, &lock, &visit), seen)).await;
    }
    fleet.judge(ROOM, WRITER).await.unwrap();
    let passed = passed(&fleet, "parent").await;
    // Each task may have got the lock before, and entered only after.
    assert!(passed.len() == ROUNDS && passed.iter().all(|passed| *passed <= 2 * TASKS), "{passed:?}");
}
