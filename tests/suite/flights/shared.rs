//! What is shared, by whom, and for how long.

use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{join, poll};
use tokio::time::timeout;
use tower_distributed::SingleFlight;
use tower_distributed::operator::{Entry, Kind};
use tower_distributed::single_flight::{Postcard, RunError};

use super::{
    Origin, all_differ, all_ended, begin, begin_run, builder, call, call_failing, ended, several,
    visible,
};
use crate::fleet::elsewhere;
use crate::operators::is_answered;
use crate::stores::{Place, SOON, in_memory};
use support::eventually;

pub(crate) async fn callers_everywhere_share_one_run(place: &Place, name: &str) {
    let (flights, origin) = (several(place, name, 4, builder), Origin::shut());
    assert_eq!(flights[0].name(), name);
    let mut callers = vec![begin_run(&flights[0], &origin).await];
    for _ in 0..5 {
        for flight in &flights {
            callers.push(call(flight, &origin).await);
        }
    }
    // One for each process.
    place.lined_up(&format!("{name}:k"), 3).await;
    origin.let_go(1);
    assert_eq!(all_ended(callers).await, [1; 21]);
    for flight in &flights {
        assert_eq!(
            flight.run("k", origin.work()).await.unwrap(),
            1,
            "it lives for ten minutes"
        );
    }
    assert_eq!(origin.runs(), 1);
    origin.let_go(1);
    assert_eq!(flights[1].run("another", origin.work()).await.unwrap(), 2);
}

pub(crate) async fn an_answer_lives_for_its_life(place: &Place, name: &str) {
    const LIFE: Duration = Duration::from_millis(300);
    let (flights, origin) = (
        several(place, name, 2, || builder().ttl(LIFE)),
        Origin::open(),
    );
    let began = Instant::now();
    assert_eq!(flights[0].run("k", origin.work()).await.unwrap(), 1);
    eventually("another run", SOON, async || {
        match flights[1].run("k", origin.work()).await.unwrap() {
            1 => false,
            other => {
                assert_eq!(other, 2);
                assert!(began.elapsed() >= LIFE, "after {:?}", began.elapsed());
                true
            }
        }
    })
    .await;
}

/// An answer without a life, or an error, is for one: all who wait run at once.
pub(crate) async fn what_is_not_shared_is_for_one(place: &Place, name: &str) {
    for fails in [0, 1] {
        let name = &format!("{name}.{fails}");
        let build = || {
            if fails == 0 {
                builder().ttl_with(|_| None)
            } else {
                builder()
            }
        };
        let (flights, origin) = (visible::<String>(place, name, 3, build), Origin::crowded());
        let call = |number: usize| call_failing(&flights[number], &origin, fails);
        let first = call(0).await;
        origin.began(1).await;
        let mut others = Vec::new();
        for number in [0, 1, 2, 0, 1, 2] {
            others.push(call(number).await);
        }
        place.lined_up(&format!("{name}:k"), 2).await;
        assert_eq!(origin.runs(), 1);
        origin.let_go(1);
        match ended(first).await {
            Ok(run) => assert_eq!((run, fails), (1, 0)),
            Err(error) => {
                assert!(matches!(error, RunError::Failed(error) if error == "1" && fails == 1))
            }
        }
        origin.began(7).await;
        // Who comes later does not wait for those who run at once; and shares again, where there is an answer.
        if fails == 0 {
            others.push(call(1).await);
            origin.began(8).await;
        }
        origin.let_go(others.len());
        let answers = all_ended(others).await;
        assert!(all_differ(&answers), "{answers:?}");
        if fails == 1 {
            let leader = call(1).await;
            origin.began(8).await;
            let follower = call(2).await;
            origin.let_go(1);
            assert_eq!(
                (ended(leader).await.unwrap(), ended(follower).await.unwrap()),
                (8, 8)
            );
        }
    }
    // Each answer has a life of its own.
    let even = || builder().ttl_with(|run| (run % 2 == 0).then_some(super::LONG));
    let (flights, origin) = (
        several(place, &format!("{name}.even"), 2, even),
        Origin::open(),
    );
    for (number, key, expected) in [
        (0, "odd", 1),
        (1, "even", 2),
        (0, "even", 2),
        (1, "odd", 3),
        (0, "odd", 4),
    ] {
        let flight: &SingleFlight<u64> = &flights[number];
        assert_eq!(flight.run(key, origin.work()).await.unwrap(), expected);
    }
}

/// So many of a key run at once in a process, where nothing is shared.
pub(crate) async fn those_who_run_at_once_are_bounded(place: &Place, name: &str) {
    let origin = Origin::crowded();
    let flight = builder()
        .ttl_with(|_| None)
        .max_parallel(2)
        .build(place, name)
        .unwrap();
    let mut callers = vec![begin_run(&flight, &origin).await];
    for _ in 0..5 {
        callers.push(call(&flight, &origin).await);
    }
    for begun in [3, 4, 5, 6] {
        origin.let_go(1);
        origin.began(begun).await;
        assert_eq!(origin.runs(), begun, "more than two at a time");
    }
    let (other, work) = (flight.clone(), origin.work());
    callers.push(begin(async move { other.run("another", work).await }).await);
    origin.began(7).await;
    origin.let_go(3);
    assert!(all_differ(&all_ended(callers).await));
}

/// Two of each process wait for one run, which fails with its number so many times.
async fn all_fail_alike(
    place: &Place,
    flights: &[SingleFlight<u64, String>],
    origin: &Origin,
    times: usize,
) {
    let mut callers = Vec::new();
    for flight in flights.iter().cycle().take(6) {
        let (flight, work) = (flight.clone(), origin.failing(1));
        let work = move || async move { work().await.map_err(|error| error.repeat(times)) };
        callers.push(begin(async move { flight.try_run("k", work).await }).await);
    }
    place.lined_up(&format!("{}:k", flights[0].name()), 2).await;
    origin.let_go(1);
    for caller in callers {
        let error = ended(caller).await.unwrap_err();
        assert!(matches!(&error, RunError::Failed(error) if *error == "1".repeat(times)));
    }
    assert_eq!(origin.runs(), 1);
}

/// An error that is shared is for those alone who wait, unless it has a life of its own. What is too large for a message is asked
/// for again, by them.
pub(crate) async fn errors_are_shared_with_those_who_wait(place: &Place, name: &str) {
    let shared = || builder::<String>().share_errors(Postcard);
    for times in [1, 100_000] {
        let (flights, origin) = (
            visible(place, &format!("{name}.{times}"), 3, shared),
            Origin::shut(),
        );
        all_fail_alike(place, &flights, &origin, times).await;
        origin.let_go(1);
        assert_eq!(flights[2].try_run("k", origin.failing(1)).await.unwrap(), 2);
    }
    let lives = || shared().error_ttl(Duration::from_secs(3));
    let (flights, origin) = (several(place, name, 3, lives), Origin::shut());
    all_fail_alike(place, &flights, &origin, 1).await;
    origin.let_go(1);
    eventually("another run", SOON, async || {
        flights[1]
            .try_run("k", origin.failing(1))
            .await
            .is_ok_and(|run| run == 2)
    })
    .await;
}

/// A key under load: whenever its answer has run out, one runs.
#[tokio::test(start_paused = true)]
async fn each_answer_of_a_hot_key_lives_for_its_life() {
    const LIFE: Duration = Duration::from_millis(40);
    let flights = several(&in_memory().await, "hot", 4, || builder().ttl(LIFE));
    let (origin, until) = (Origin::open(), tokio::time::Instant::now() + LIFE * 40);
    let callers = flights
        .iter()
        .cycle()
        .take(12)
        .map(async |flight: &SingleFlight<u64>| {
            while tokio::time::Instant::now() < until {
                flight.run("k", origin.work()).await.unwrap();
                // The clock goes on when all tasks wait.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    join_all(callers).await;
    // Clocks are told in whole ms here and there.
    assert!((30..=42).contains(&origin.runs()), "{} runs", origin.runs());
}

/// A call that found the answer before it was forgotten does not share it with callers that come after.
pub(crate) async fn what_was_found_is_forgotten_too(place: &Place, name: &str) {
    let (flight, origin) = (builder().build(place, name).unwrap(), Origin::open());
    let flight: SingleFlight<u64> = flight;
    assert_eq!(flight.run("k", origin.work()).await.unwrap(), 1);
    // A run that is in progress is not forgotten.
    is_answered(
        &place.operator(),
        &Entry::new(Kind::SingleFlight, name, "k").unwrap(),
    )
    .await;
    let mut first = pin!(flight.run("k", origin.work()));
    let found = poll!(first.as_mut());
    flight.forget("k").await.unwrap();
    let second = flight.run("k", origin.work());
    let second = match found {
        Poll::Ready(_) => second.await,
        // It asks first, and joins the call of the first one.
        Poll::Pending => join!(second, first).0,
    };
    assert_eq!(second.unwrap(), 2);
}

pub(crate) async fn what_is_forgotten_runs_anew(place: &Place, name: &str) {
    let (flights, origin) = (several(place, name, 2, builder), Origin::shut());
    origin.let_go(1);
    assert_eq!(flights[0].run("k", origin.work()).await.unwrap(), 1);
    flights[1].forget("another").await.unwrap();
    assert_eq!(flights[1].run("k", origin.work()).await.unwrap(), 1);
    flights[1].forget("k").await.unwrap();
    let second = begin_run(&flights[0], &origin).await;
    // What is under way goes on, and is published.
    flights[1].forget("k").await.unwrap();
    origin.let_go(1);
    assert_eq!(ended(second).await.unwrap(), 2);
    assert_eq!(flights[1].run("k", origin.work()).await.unwrap(), 2);
    assert_eq!(origin.runs(), 2);
}

/// Who was given an answer may end the process in order: others get the answer, and do not run.
pub(crate) async fn what_a_crowd_was_given_is_published_before_the_end(place: &Place, name: &str) {
    let store = elsewhere(place);
    let flight: SingleFlight<u64> = builder().build(&store, name).unwrap();
    let runs = (0..64_u64).map(|key| flight.run(key, move || async move { key }));
    for (key, answer) in join_all(runs).await.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), key as u64);
    }
    store.shutdown(SOON).await.unwrap();
    let other: SingleFlight<u64> = builder().build(place, name).unwrap();
    for key in 0..64_u64 {
        let answer = timeout(SOON, other.run(key, || async { 99 }))
            .await
            .expect("the lead is given back");
        assert_eq!(answer.unwrap(), key);
    }
}
