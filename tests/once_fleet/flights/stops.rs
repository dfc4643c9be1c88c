//! Leaders that stand still for longer than their lease.

use std::time::{Duration, Instant};

use futures::future::join_all;

use super::flights;
use crate::fleet::{Fleet, LONG, in_time, store_of_role};
use crate::origin::hex;
use crate::referee::Referee;
use support::eventually;
use support::processes::{setting, tell};
use support::role;

const STOPS: usize = 20;
const TTL: Duration = Duration::from_millis(500);

// Runs for `KEY` until it is told to go on, and tells what it got.
role!(role_leader, async {
    let (referee, key, name) = (Referee::of_role().await, setting("KEY"), setting("NAME"));
    let work = {
        let key = key.clone();
        move || async move {
            let bytes = referee.run(&key, &name).await;
            tell("running");
            referee.next_order(&name).await;
            bytes
        }
    };
    let flights = flights(&store_of_role(), TTL);
    let answer = flights.run(key.as_str(), work).await.unwrap();
    tell(&hex(&answer));
    // What it asks for then comes after what it has published, or not.
    let answer = flights.run(key, || async { unreachable!("there is an answer") }).await.unwrap();
    tell(&hex(&answer));
});

/// Stops a leader until another has taken over, for two times to live at least. The other is done before the stopped
/// one goes on, or after that is done too.
async fn stop(fleet: &Fleet, number: usize) {
    let (key, name, slow) = (&*format!("key{number}"), &*format!("l{number}"), number.is_multiple_of(2));
    let mut leader = fleet.spawn("flights::stops::role_leader", name, &[("KEY", key)]);
    assert_eq!(leader.next_line().await, "running");
    let (here, other) = (flights(&fleet.store(), LONG), flights(&fleet.store(), LONG));
    let (referee, of) = (fleet.referee.clone(), key.to_owned());
    let (finish, may_finish) = tokio::sync::oneshot::channel::<()>();
    let work = move || async move {
        let bytes = referee.run(&of, "here").await;
        if slow {
            may_finish.await.unwrap();
        }
        bytes
    };
    leader.pause();
    let stopped = Instant::now();
    let newer = tokio::spawn({
        let key = key.to_owned();
        async move { here.run(key, work).await.unwrap() }
    });
    eventually("another to take over", LONG, async || {
        fleet.referee.count(key, "run").await == 2 && (slow || newer.is_finished())
    })
    .await;
    eventually("two times to live to be over", LONG, async || stopped.elapsed() > TTL * 2).await;
    leader.resume();
    fleet.referee.order(name, "go on").await;
    let older = leader.next_line().await;
    let _ = finish.send(());
    let newer = hex(&newer.await.unwrap());
    assert_ne!(older, newer, "its own caller gets what its own run gave");
    assert_eq!(leader.next_line().await, newer, "who has lost its lease has published");
    let answer = other.run(key, || async { unreachable!("there is an answer") }).await.unwrap();
    assert_eq!(hex(&answer), newer);
    assert_eq!(fleet.referee.count(key, "run").await, 2);
    assert!(leader.wait().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stopped_leaders_bring_is_not_published_over_what_is_newer() {
    let fleet = &Fleet::start().await;
    in_time("stops", join_all((0..STOPS).map(|number| stop(fleet, number)))).await;
    fleet.leaves_nothing();
}
