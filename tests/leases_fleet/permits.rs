//! Permits under load, while processes are killed.

use std::time::Duration;

use tower_distributed::WaitGroup;
use tower_distributed::wait_group::Turn;

use crate::fleet::{Fleet, LONG, store_of_role};
use crate::referee::Referee;
use support::processes::{setting, tell};
use support::role;
use support::{eventually, size};

const ROOM: &str = "room";
const LIMIT: u32 = 5;
const PROCESSES: usize = 4;
const TASKS: usize = 16;
const KILLS: u64 = 4;
const TTL: Duration = Duration::from_secs(2);

fn permits(fair: &str) -> u64 {
    (if fair == "true" { 1_000 } else { 4_000 }) * size() as u64
}

// Takes permits from many tasks, until all have been taken. If they are `FAIR`, in three flows and two classes.
role!(role_worker, async {
    let (referee, name, fair) = (Referee::of_role().await, setting("NAME"), setting("FAIR"));
    let (permits, fair) = (permits(&fair), fair == "true");
    let builder = WaitGroup::builder(LIMIT).ttl(TTL);
    let builder = if fair { builder.fair().priorities(2) } else { builder };
    let group = builder.build(&store_of_role(), "permits").unwrap();
    let workers = (0..TASKS).map(|task| {
        let (referee, name) = (referee.clone(), name.clone());
        let turn = Turn::of((task % 3) as u64).class((task % 2) as u8);
        let group = if fair { group.with_turn(turn).unwrap() } else { group.clone() };
        tokio::spawn(async move {
            for number in 0.. {
                let permit = group.add("k").await.unwrap();
                let visit = referee.enter(ROOM, &format!("{name}.{task}.{number}"), 1, &permit).await;
                tokio::time::sleep(Duration::from_micros(rand::random_range(0..2000))).await;
                let left = visit.leave().await;
                visit.settle(permit.done().await.unwrap()).await;
                if left >= permits {
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

async fn keep_to_the_limit(fair: &str) {
    let (fleet, permits) = (Fleet::start().await, permits(fair));
    let start = |number| fleet.spawn("permits::role_worker", &format!("p{number}"), &[("FAIR", fair)]);
    let mut players: Vec<_> = (0..PROCESSES).map(start).collect();
    for kill in 1..=KILLS {
        fleet.left(ROOM, kill * permits / (KILLS + 1)).await;
        let victim = rand::random_range(0..PROCESSES);
        fleet.kill(&mut players[victim], &[ROOM]).await;
        players[victim] = start(PROCESSES + kill as usize);
    }
    fleet.left(ROOM, permits).await;
    for player in &mut players {
        assert_eq!(player.child.next_line().await, "done");
    }
    let verdict = fleet.judge(ROOM, LIMIT).await.unwrap();
    assert!(verdict.visits >= permits as usize);
    assert_eq!((verdict.at_once, verdict.kills), (LIMIT as usize, KILLS as usize));
    assert!((verdict.late as u64) < permits / 100, "{} permits prove nothing", verdict.late);
    // What the killed ones held is given out again, all of it.
    let group = WaitGroup::new(&fleet.store(), "permits", LIMIT).unwrap();
    eventually("all permits to be back", LONG, async || group.count("k").await.unwrap() == 0).await;
}

#[tokio::test]
async fn there_are_never_more_permits_than_the_limit() {
    keep_to_the_limit("false").await;
}

#[tokio::test]
async fn there_are_never_more_permits_than_the_limit_in_flows_and_classes() {
    keep_to_the_limit("true").await;
}
