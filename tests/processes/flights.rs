//! Leaders of flights that are killed in the middle of a run.

use std::future::pending;
use std::time::Duration;

use futures::future::join_all;
use tower_distributed::single_flight::Postcard;
use tower_distributed::{SingleFlight, Store};

use crate::fleet::{CLAIM, Fleet, LONG, Player, in_time, store_of_role};
use crate::referee::Referee;
use support::eventually;
use support::keys::keys_without_ttl;
use support::processes::{setting, tell};
use support::role;

const KILLS: usize = 8;
/// How many at a time.
const WAVE: usize = 4;
const TTL: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_millis(500);
/// Processes that follow, and callers in each.
const FOLLOWERS: usize = 3;
const CALLERS: usize = 2;

/// Answers that live to the end of the test.
fn flights(store: &Store) -> SingleFlight<String> {
    let builder = SingleFlight::builder(Postcard).ttl(Duration::from_secs(3600)).lease_ttl(TTL);
    builder.max_wait(Duration::from_secs(600)).build(store, "flights").unwrap()
}

/// A run for a key: what comes of it is never the same.
async fn run(referee: Referee, key: String, name: String) -> String {
    let number = referee.note(&key, "run", &name).await;
    format!("{key}:{number}:{name}")
}

// Runs for `KEY` until it is killed.
role!(role_leader, async {
    let (referee, key, name) = (Referee::of_role().await, setting("KEY"), setting("NAME"));
    let of = key.clone();
    let work = move || async move {
        run(referee, of, name).await;
        tell("running");
        pending().await
    };
    flights(&store_of_role()).run(key, work).await.unwrap();
});

// Calls for each key it is told, and notes what it got.
role!(role_follower, async {
    let (referee, orders, name) = (Referee::of_role().await, Referee::of_role().await, setting("NAME"));
    let flights = flights(&store_of_role());
    loop {
        let key = orders.next_order(&name).await;
        for _ in 0..CALLERS {
            let (flights, referee, key, name) = (flights.clone(), referee.clone(), key.clone(), name.clone());
            tokio::spawn(async move {
                let (at, of) = (referee.clone(), key.clone());
                let answer = flights.run(key.as_str(), move || run(at, of, name)).await.unwrap();
                referee.note(&key, "got", &answer).await;
            });
        }
    }
});

/// Kills a leader, and every second time the process as well that would take over. Where it could be told that it hears no more
/// it is passed over at once; else it is waited for as long as a claim stands.
async fn kill(fleet: &Fleet, number: usize) -> Duration {
    let (key, kills_heir) = (&*format!("key{number}"), number % 2 == 1);
    let mut leader = fleet.spawn("flights::role_leader", "leader", &[("KEY", key)]);
    assert_eq!(leader.child.next_line().await, "running");
    let follower = |at| fleet.spawn("flights::role_follower", &format!("f{number}.{at}"), &[]);
    let mut followers: Vec<Player> = (0..FOLLOWERS).map(follower).collect();
    for (waiting, follower) in followers.iter().enumerate() {
        fleet.referee.order(&follower.name, key).await;
        fleet.lined_up("flights", key, waiting + 1).await;
    }
    fleet.kill(&mut leader, &[key]).await;
    if kills_heir {
        followers.remove(0).child.kill9();
    }
    judge(fleet, key, followers.len() * CALLERS).await
}

/// From the kill to when each caller of those who live got its answer; the last.
async fn judge(fleet: &Fleet, key: &str, callers: usize) -> Duration {
    let callers = u64::try_from(callers).unwrap();
    eventually(&format!("answers for {key}"), LONG, async || {
        fleet.referee.count(key, "got").await >= callers
    })
    .await;
    let notes = fleet.notes(key).await;
    let with = |verb| notes.iter().filter(|note| note.verb == verb).collect::<Vec<_>>();
    let (killed, runs, got) = (with("kill")[0], with("run"), with("got"));
    assert_eq!(runs.len(), 2, "exactly one takes over: {notes:?}");
    assert_eq!(runs[0].visit, "leader");
    assert!(got.iter().all(|note| note.visit == got[0].visit), "{notes:?}");
    assert!(!runs[1].after(killed).is_zero(), "{notes:?}");
    got.iter().map(|note| note.after(killed)).max().unwrap()
}

/// Its lease was renewed just before at the latest; then all who follow are answered, by one run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_takes_over_from_a_killed_leader_in_time() {
    let fleet = &Fleet::start().await;
    let mut took = Vec::new();
    for wave in (0..KILLS).collect::<Vec<_>>().chunks(WAVE) {
        let kills = wave.iter().map(|number| kill(fleet, *number));
        took.extend(in_time("kills", join_all(kills)).await);
    }
    println!("answered after a kill, and after two: {took:?}");
    assert_eq!(took.len(), KILLS);
    assert!(took.iter().all(|took| *took < TTL + CLAIM + GRACE), "{took:?}");
    assert_eq!(keys_without_ttl(&fleet.server), [""; 0]);
}
