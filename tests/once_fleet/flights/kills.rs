//! Leaders that are killed in the middle of a run.

use std::future::pending;
use std::time::Duration;

use futures::future::join_all;

use super::flights;
use crate::fleet::{Fleet, LONG, in_time, store_of_role};
use crate::origin::hex;
use crate::referee::Referee;
use support::eventually;
use support::processes::{Child, setting, tell};
use support::role;

const KILLS: usize = 50;
/// How many at a time.
const WAVE: usize = 10;
const TTL: Duration = Duration::from_secs(1);
/// For how long somebody may be waited for that was granted the lead, and was killed itself.
const CLAIM: Duration = Duration::from_millis(1500);
const GRACE: Duration = Duration::from_millis(500);
/// Processes that follow, and callers in each.
const FOLLOWERS: usize = 3;
const CALLERS: usize = 2;

// Runs for `KEY` until it is killed.
role!(role_leader, async {
    let (referee, key, name) = (Referee::of_role().await, setting("KEY"), setting("NAME"));
    let work = {
        let key = key.clone();
        move || async move {
            referee.run(&key, &name).await;
            tell("running");
            pending().await
        }
    };
    flights(&store_of_role(), TTL).run(key, work).await.unwrap();
});

// Calls for each key it is told, and notes what it got.
role!(role_follower, async {
    let (referee, orders, name) = (Referee::of_role().await, Referee::of_role().await, setting("NAME"));
    let flights = flights(&store_of_role(), TTL);
    loop {
        let key = orders.next_order(&name).await;
        for _ in 0..CALLERS {
            let (flights, referee, key, name) = (flights.clone(), referee.clone(), key.clone(), name.clone());
            tokio::spawn(async move {
                let (at, of) = (referee.clone(), key.clone());
                let work = move || async move { at.run(&of, &name).await };
                let answer = flights.run(key.as_str(), work).await.unwrap();
                referee.note(&key, "got", &hex(&answer)).await;
            });
        }
    }
});

fn followers(fleet: &Fleet, prefix: &str) -> (Vec<String>, Vec<Child>) {
    let names: Vec<_> = (0..FOLLOWERS).map(|number| format!("{prefix}{number}")).collect();
    let start = |name: &String| fleet.spawn("flights::kills::role_follower", name, &[]);
    let children = names.iter().map(start).collect();
    (names, children)
}

async fn lead(fleet: &Fleet, key: &str) -> Child {
    let mut leader = fleet.spawn("flights::kills::role_leader", "leader", &[("KEY", key)]);
    assert_eq!(leader.next_line().await, "running");
    leader
}

/// From the kill to when each caller of those who live got its answer; the last.
async fn judge(fleet: &Fleet, key: &str, callers: usize) -> Duration {
    let callers = u64::try_from(callers).unwrap();
    eventually(&format!("answers for {key}"), LONG, async || {
        fleet.referee.count(key, "got").await >= callers
    })
    .await;
    let notes = fleet.referee.story(key).await;
    let runs: Vec<_> = notes.iter().filter(|note| note.verb == "run").collect();
    assert_eq!(runs.len(), 2, "exactly one takes over: {notes:?}");
    assert_eq!(runs[0].rest, "leader");
    let got: Vec<_> = notes.iter().filter(|note| note.verb == "got").collect();
    assert!(got.iter().all(|note| note.rest == got[0].rest), "{notes:?}");
    let killed = notes.iter().find(|note| note.verb == "kill").unwrap().at;
    assert!(killed < runs[1].at, "{notes:?}");
    Duration::from_micros(got.iter().map(|note| note.at).max().unwrap() - killed)
}

fn print(what: &str, took: &mut [Duration]) {
    took.sort();
    println!("{what}: {:?} to {:?}, median {:?}", took[0], took[took.len() - 1], took[took.len() / 2]);
}

/// Its lease was renewed just before at the latest; then all who follow are answered, by one run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_takes_over_from_a_killed_leader_in_time() {
    let fleet = &Fleet::start().await;
    let (names, _children) = &followers(fleet, "f");
    let kill = async |number: &usize| {
        let key = &*format!("key{number}");
        let mut leader = lead(fleet, key).await;
        for name in names {
            fleet.referee.order(name, key).await;
        }
        fleet.lined_up(&format!("flights:{key}"), "flight:beats", FOLLOWERS as u64).await;
        fleet.referee.note(key, "kill", "leader").await;
        leader.kill9();
        judge(fleet, key, FOLLOWERS * CALLERS).await
    };
    let mut took = Vec::new();
    for wave in (0..KILLS).collect::<Vec<_>>().chunks(WAVE) {
        took.extend(in_time("kills", join_all(wave.iter().map(kill))).await);
    }
    print("answered after a kill", &mut took);
    assert_eq!(took.len(), KILLS);
    fleet.leaves_nothing();
}

/// The process that would take over is killed with the leader. Where it could be told that it hears no more it is
/// passed over at once; else it is waited for as long as a claim stands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_to_take_over_may_be_killed_too() {
    let fleet = &Fleet::start().await;
    let mut took = Vec::new();
    for number in 0..10 {
        let key = &*format!("key{number}");
        let (state, mut leader) = (format!("flights:{key}"), lead(fleet, key).await);
        let (names, mut children) = followers(fleet, &format!("f{number}."));
        for (waiting, name) in names.iter().enumerate() {
            fleet.referee.order(name, key).await;
            fleet.lined_up(&state, "flight:beats", waiting as u64 + 1).await;
        }
        assert_eq!(fleet.queue(&state, "flight:waiters").len(), FOLLOWERS);
        fleet.referee.note(key, "kill", "leader and heir").await;
        leader.kill9();
        children[0].kill9();
        took.push(in_time(key, judge(fleet, key, (FOLLOWERS - 1) * CALLERS)).await);
    }
    print("answered after two kills", &mut took);
    assert!(took[took.len() - 1] < TTL + CLAIM + GRACE, "{took:?}");
    fleet.leaves_nothing();
}
