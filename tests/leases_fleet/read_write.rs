//! Readers and writers under load, while processes are killed.

use std::time::Duration;

use futures::future;
use tower_distributed::{RwLock, Store};

use crate::fleet::{Fleet, LONG, in_time, store_of_role};
use crate::referee::{Referee, Visit};
use support::processes::{setting, tell};
use support::role;
use support::{eventually, size};

const ROOM: &str = "room";
const PROCESSES: usize = 4;
const TASKS: usize = 16;
const KILLS: u64 = 3;
const TTL: Duration = Duration::from_secs(2);
/// How heavy a reader is, and a writer: so heavy that nobody fits beside it.
pub(crate) const READER: u32 = 1;
pub(crate) const WRITER: u32 = 1000;
/// How many may go before somebody, in a run of 10 000 with 64 who want something all the time. One process may well
/// stand still while the others go on, between the note that it asks and the asking.
const PASSED: usize = 1000;

fn accesses() -> u64 {
    4_000 * size() as u64
}

pub(crate) fn locks(store: &Store, ttl: Duration) -> RwLock {
    RwLock::builder().ttl(ttl).build(store, "documents").unwrap()
}

/// Reads or writes once, for a short time; returns how often the room was left.
async fn access(referee: &Referee, lock: &RwLock, visit: &str, writes: bool) -> u64 {
    let stay = async |visit: &Visit| {
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..2000))).await;
        visit.leave().await
    };
    referee.note(ROOM, "ask", visit).await;
    let (left, visit, released) = if writes {
        let guard = lock.write("k").await.unwrap();
        let visit = referee.enter(ROOM, visit, WRITER, &guard).await;
        (stay(&visit).await, visit, guard.release().await)
    } else {
        let guard = lock.read("k").await.unwrap();
        let visit = referee.enter(ROOM, visit, READER, &guard).await;
        (stay(&visit).await, visit, guard.release().await)
    };
    visit.settle(released.unwrap()).await;
    left
}

// Reads and writes from `TASKS` tasks, `WRITES` of a hundred times it writes, until the room was left `UNTIL` times.
role!(role_worker, async {
    let (referee, name, lock) = (Referee::of_role().await, setting("NAME"), locks(&store_of_role(), TTL));
    let [tasks, writes, until] =
        ["TASKS", "WRITES", "UNTIL"].map(|name| setting(name).parse::<u64>().unwrap());
    let workers = (0..tasks).map(|task| {
        let (referee, name, lock) = (referee.clone(), name.clone(), lock.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let writes = rand::random_range(0..100) < writes;
                if access(&referee, &lock, &format!("{name}.{task}.{number}"), writes).await >= until {
                    return;
                }
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    tell("done");
});

#[tokio::test]
async fn a_writer_is_never_beside_anybody_and_nobody_starves() {
    let fleet = Fleet::start().await;
    let (tasks, until) = (TASKS.to_string(), accesses().to_string());
    let env = [("TASKS", tasks.as_str()), ("WRITES", "20"), ("UNTIL", until.as_str())];
    let start = |number| fleet.spawn("read_write::role_worker", &format!("p{number}"), &env);
    let mut players: Vec<_> = (0..PROCESSES).map(start).collect();
    for kill in 1..=KILLS {
        fleet.left(ROOM, kill * accesses() / (KILLS + 1)).await;
        let victim = rand::random_range(0..PROCESSES);
        fleet.kill(&mut players[victim], &[ROOM]).await;
        players[victim] = start(PROCESSES + kill as usize);
    }
    fleet.left(ROOM, accesses()).await;
    for player in &mut players {
        assert_eq!(player.child.next_line().await, "done");
    }
    let verdict = fleet.judge(ROOM, WRITER).await.unwrap();
    assert!(verdict.visits >= accesses() as usize);
    assert_eq!(verdict.kills, KILLS as usize);
    assert!(verdict.at_once > 1, "readers never shared it");
    assert!((verdict.late as u64) < accesses() / 100, "{} visits prove nothing", verdict.late);
    for who in [READER, WRITER] {
        let passed = verdict.passed[&who];
        assert!(passed < PASSED, "{passed} went before one with weight {who}");
    }
}

// Reads until it is killed.
role!(role_reader, async {
    let (referee, lock) = (Referee::of_role().await, locks(&store_of_role(), TTL));
    let guard = lock.read("k").await.unwrap();
    referee.enter(ROOM, &format!("{}.0", setting("NAME")), READER, &guard).await;
    tell("reading");
    std::future::pending().await
});

#[tokio::test]
async fn a_killed_reader_frees_only_itself() {
    let fleet = Fleet::start().await;
    let lock = locks(&fleet.store(), LONG);
    let guard = lock.read("k").await.unwrap();
    let visit = fleet.referee.enter(ROOM, "reader.0", READER, &guard).await;
    let mut killed = fleet.spawn("read_write::role_reader", "killed", &[]);
    assert_eq!(killed.child.next_line().await, "reading");
    let writing = async {
        let guard = lock.write("k").await.unwrap();
        let visit = fleet.referee.enter(ROOM, "writer.0", WRITER, &guard).await;
        visit.leave().await;
        visit.settle(guard.release().await.unwrap()).await;
    };
    let reading = async {
        fleet.lined_up("documents", "k", 1).await;
        fleet.kill(&mut killed, &[ROOM]).await;
        let what = "the killed reader's lease to be over";
        eventually(what, TTL * 3, async || fleet.tokens("documents", "k", "holders").await.len() == 1).await;
        assert_eq!(fleet.waiting("documents", "k").await.len(), 1);
        assert!(guard.is_held());
        visit.leave().await;
        visit.settle(guard.release().await.unwrap()).await;
    };
    in_time("the writer", future::join(writing, reading)).await;
    let verdict = fleet.judge(ROOM, WRITER).await.unwrap();
    assert_eq!(verdict.entered, ["reader.0", "killed.0", "writer.0"]);
}
