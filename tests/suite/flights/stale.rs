//! Answers that are served after their life, while a fresh one is made, or that are made anew before it is over.

use std::time::Duration;

use tower_distributed::SingleFlight;
use tower_distributed::single_flight::{Postcard, SingleFlightBuilder};

use super::{Origin, begin_run, builder, call, ended, several};
use crate::stores::{Place, SOON};
use support::eventually;

const LIFE: Duration = Duration::from_millis(50);

fn stale<E: Send + Sync + 'static>() -> SingleFlightBuilder<u64, E> {
    builder()
        .ttl(LIFE)
        .stale_while_revalidate(Duration::from_secs(3600))
}

pub(crate) async fn what_is_stale_is_served_while_one_runs(place: &Place, name: &str) {
    let (flights, origin) = (several(place, name, 3, stale), Origin::shut());
    let first = begin_run(&flights[0], &origin).await;
    let follower = call(&flights[1], &origin).await;
    origin.let_go(1);
    // Where there is none, all wait.
    assert_eq!(
        (ended(first).await.unwrap(), ended(follower).await.unwrap()),
        (1, 1)
    );
    for run in 2..=4 {
        // Nobody waits: the run that it brings about is not let go.
        eventually("it to be stale", SOON, async || {
            for flight in &flights {
                assert_eq!(flight.run("k", origin.work()).await.unwrap(), run - 1);
            }
            origin.runs() >= run
        })
        .await;
        for _ in 0..3 {
            let mut callers = Vec::new();
            for flight in &flights {
                callers.push(call(flight, &origin).await);
            }
            for caller in callers {
                assert_eq!(ended(caller).await.unwrap(), run - 1);
            }
        }
        assert_eq!(origin.runs(), run, "more than one refreshes");
        origin.let_go(1);
        for flight in &flights {
            eventually("the fresh one", SOON, async || {
                flight.run("k", origin.work()).await.unwrap() >= run
            })
            .await;
        }
        // The next may be under way already.
        assert!(origin.runs() <= run + 1);
    }
    origin.let_go(1);
}

/// The last good answer is served on, whether or not errors are shared.
pub(crate) async fn a_refresh_that_fails_changes_nothing(place: &Place, name: &str) {
    refreshes_that_fail(several(place, name, 2, stale)).await;
    let shared = || stale().share_errors(Postcard).error_ttl(LIFE);
    refreshes_that_fail(several(place, &format!("{name}/errors"), 2, shared)).await;
}

async fn refreshes_that_fail(flights: Vec<SingleFlight<u64, String>>) {
    let origin = Origin::shut();
    let fail = |last: u64| {
        let work = origin.work();
        move || async move {
            match work().await {
                1 => Ok(1),
                run if run <= last => Err(run.to_string()),
                run => Ok(run),
            }
        }
    };
    origin.let_go(3);
    assert_eq!(flights[0].try_run("k", fail(3)).await.unwrap(), 1);
    eventually("two failures, and a third run", SOON, async || {
        assert_eq!(flights[1].try_run("k", fail(3)).await.unwrap(), 1);
        origin.runs() == 4
    })
    .await;
    origin.let_go(1);
    eventually("a good one", SOON, async || {
        flights[0].try_run("k", fail(3)).await.unwrap() > 1
    })
    .await;
}

/// Those who come after an answer was forgotten wait for the run that is under way.
pub(crate) async fn what_is_stale_can_be_forgotten(place: &Place, name: &str) {
    let (flight, origin) = (stale().build(place, name).unwrap(), Origin::shut());
    let flight: SingleFlight<u64> = flight;
    origin.let_go(1);
    assert_eq!(flight.run("k", origin.work()).await.unwrap(), 1);
    refreshing(&flight, &origin).await;
    flight.forget("k").await.unwrap();
    let waiter = call(&flight, &origin).await;
    assert!(!waiter.is_finished(), "it was forgotten");
    origin.let_go(1);
    assert_eq!(ended(waiter).await.unwrap(), 2);
}

/// Asks until the second run has begun in the background; nobody waits for it.
async fn refreshing(flight: &SingleFlight<u64>, origin: &Origin) {
    eventually("a refresh", SOON, async || {
        assert_eq!(
            flight.run("k", origin.work()).await.unwrap(),
            1,
            "nobody waits"
        );
        origin.runs() == 2
    })
    .await;
}

/// An answer without a stale time is not served after its life, to whom it is all the same.
pub(crate) async fn what_is_stale_may_be_unwanted(place: &Place, name: &str) {
    let origin = Origin::shut();
    let [keeps, reads] =
        [stale(), builder().ttl(LIFE)].map(|builder| builder.build(place, name).unwrap());
    origin.let_go(1);
    assert_eq!(keeps.run("k", origin.work()).await.unwrap(), 1);
    refreshing(&keeps, &origin).await;
    let waits = call(&reads, &origin).await;
    place.lined_up(&format!("{name}:k"), 1).await;
    assert_eq!(keeps.run("k", origin.work()).await.unwrap(), 1);
    // It takes turns or gets the answer, as long as that lives.
    origin.let_go(2);
    assert!(ended(waits).await.unwrap() >= 2);
}

/// A run is begun early about so much before the end, in the mean, as a hundred runs take.
const RUN: Duration = Duration::from_millis(300);

fn early<E: Send + Sync + 'static>() -> SingleFlightBuilder<u64, E> {
    builder().ttl(100 * RUN).refresh_early(100.0)
}

pub(crate) async fn an_answer_is_made_anew_before_its_end(place: &Place, name: &str) {
    let (flights, origin) = (several(place, name, 2, early), Origin::shut());
    let flights: Vec<SingleFlight<u64>> = flights;
    let first = begin_run(&flights[0], &origin).await;
    tokio::time::sleep(RUN).await; // what the run takes
    origin.let_go(1);
    assert_eq!(ended(first).await.unwrap(), 1);
    for run in 2..=3 {
        eventually("a run to begin early", SOON, async || {
            assert_eq!(
                flights[0].run("k", origin.work()).await.unwrap(),
                run - 1,
                "nobody waits"
            );
            origin.runs() == run
        })
        .await;
        // Nor while it is under way, here or elsewhere; and there is one.
        for flight in &flights {
            assert_eq!(flight.run("k", origin.work()).await.unwrap(), run - 1);
        }
        origin.let_go(1);
        eventually("the fresh one", SOON, async || {
            flights[1].run("k", origin.work()).await.unwrap() == run
        })
        .await;
    }
}
