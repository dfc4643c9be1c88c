//! Those who do not come first, and how long they wait.

use std::time::{Duration, Instant};

use tower_distributed::single_flight::{Followers, RunError};
use tower_distributed::{Error, Mutex};

use super::{Origin, all_ended, begin, begin_run, builder, ended, several};
use crate::stores::{Place, SOON};
use crate::support::eventually;

const SHORT: Duration = Duration::from_millis(700);

fn is_over(error: &Error) {
    assert!(error.is_waited_too_long() && error.is_refused() && !error.is_unavailable(), "{error}");
}

pub(crate) async fn by_turns_each_runs_in_the_order_of_arrival(place: &Place, name: &str) {
    let flights = several(place, name, 2, || builder().followers(Followers::TakeTurns));
    let (origin, state) = (Origin::shut(), format!("{name}:k"));
    let mut callers = vec![begin_run(&flights[0], &origin).await];
    for number in 1..=5 {
        let (flight, work) = (flights[number % 2].clone(), origin.work());
        callers.push(place.line_up(&state, number, async move { flight.run("k", work).await }).await);
    }
    origin.let_go(6);
    assert_eq!(all_ended(callers).await, [1, 2, 3, 4, 5, 6]);
    origin.let_go(1);
    assert_eq!(flights[0].run("k", origin.work()).await.unwrap(), 7, "nothing is kept");
}

pub(crate) async fn who_is_to_skip_is_refused_at_once(place: &Place, name: &str) {
    let flights = several(place, name, 2, || builder().followers(Followers::Skip));
    let (origin, mutex) = (Origin::shut(), Mutex::new(place, name).unwrap());
    for round in 1..=3 {
        let first = begin_run(&flights[0], &origin).await;
        for flight in &flights {
            let error = flight.run("k", origin.work()).await.unwrap_err();
            assert!(error.is_refused() && !error.is_waited_too_long() && !error.is_unavailable(), "{error}");
            assert!(error.retry_after().is_some());
        }
        assert!(mutex.try_lock("k").await.unwrap_err().is_refused());
        origin.let_go(1);
        assert_eq!(ended(first).await.unwrap(), round);
        let guard = mutex.lock("k").await.unwrap();
        assert!(flights[1].run("k", origin.work()).await.unwrap_err().is_refused());
        assert!(guard.unlock().await.unwrap());
    }
    assert_eq!(origin.runs(), 3);
}

pub(crate) async fn nobody_follows_longer_than_the_longest_wait(place: &Place, name: &str) {
    let flights = several(place, name, 2, || builder().longest_wait(SHORT));
    let origin = Origin::shut();
    let leader = begin_run(&flights[0], &origin).await;
    let mut followers = Vec::new();
    for flight in [&flights[0], &flights[0], &flights[1], &flights[1]] {
        let (flight, work) = (flight.clone(), origin.work());
        followers.push(begin(async move { flight.run("k", work).await }).await);
    }
    for follower in followers {
        is_over(&ended(follower).await.unwrap_err());
    }
    // Whose own work runs is waited for, and who was refused has left nothing behind.
    place.lined_up(&format!("{name}:k"), 0).await;
    assert!(!leader.is_finished());
    origin.let_go(1);
    assert_eq!(ended(leader).await.unwrap(), 1);
    assert_eq!(flights[1].run("k", origin.work()).await.unwrap(), 1);
    assert_eq!(origin.runs(), 1);
}

/// Here or elsewhere, a follower takes over, and then is waited for as long as it takes.
pub(crate) async fn who_takes_over_follows_no_more(place: &Place, name: &str) {
    for number in 0..2 {
        let name = &format!("{name}.{number}");
        let flights = several::<String>(place, name, 2, || builder().longest_wait(SHORT));
        let origin = Origin::shut();
        let call = |number: usize| {
            let (flight, work) = (flights[number].clone(), origin.failing(1));
            async move { flight.try_run("k", work).await }
        };
        let leader = begin(call(0)).await;
        origin.began(1).await;
        let follower = begin(call(number)).await;
        origin.let_go(1);
        assert!(matches!(ended(leader).await, Err(RunError::Failed(error)) if error == "1"));
        origin.began(2).await;
        match call(number).await {
            Err(RunError::Flight(error)) => is_over(&error),
            other => panic!("{other:?}"),
        }
        assert!(!follower.is_finished());
        origin.let_go(1);
        assert_eq!(ended(follower).await.unwrap(), 2);
        assert_eq!(origin.runs(), 2);
    }
}

/// Who waits with it goes on with work of its own.
pub(crate) async fn the_work_of_who_was_refused_does_not_run(place: &Place, name: &str) {
    let [leads, follows] =
        [builder(), builder().longest_wait(SHORT)].map(|builder| builder.build(place, name).unwrap());
    let (origin, refused, other) = (Origin::shut(), Origin::open(), Origin::open());
    let leader = begin_run(&leads, &origin).await;
    let began = Instant::now();
    let follow = |origin: &Origin| {
        let (flight, work) = (follows.clone(), origin.work());
        begin(async move { flight.run("k", work).await })
    };
    let first = follow(&refused).await;
    eventually("some of its time to be over", SOON, async || began.elapsed() > SHORT / 2).await;
    let second = follow(&other).await;
    is_over(&ended(first).await.unwrap_err());
    leader.abort();
    match ended(second).await {
        Ok(run) => assert_eq!((run, other.runs()), (1, 1)),
        Err(error) => is_over(&error),
    }
    assert_eq!(follows.run("k", other.work()).await.unwrap(), 1);
    assert_eq!(refused.runs(), 0);
}

pub(crate) async fn nobody_waits_for_a_turn_longer_than_the_longest_wait(place: &Place, name: &str) {
    let turns = || builder().followers(Followers::TakeTurns).longest_wait(SHORT);
    let (flights, origin) = (several(place, name, 2, turns), Origin::shut());
    let first = begin_run(&flights[0], &origin).await;
    for flight in &flights {
        is_over(&flight.run("k", origin.work()).await.unwrap_err());
    }
    assert!(!first.is_finished());
    origin.let_go(2);
    assert_eq!(ended(first).await.unwrap(), 1);
    assert_eq!(flights[1].run("k", origin.work()).await.unwrap(), 2);
}
