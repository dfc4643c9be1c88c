//! Callers that come and go in a crowd, on several threads.

use std::time::Duration;

use futures::future::join_all;
use rand::RngExt as _;
use tokio::task::yield_now;
use tokio::time::timeout;
use tower_distributed::single_flight::{Postcard, RunError, SingleFlightBuilder};

use super::{Flight, Place, Work, builder};
use crate::scene::SOON;

const CALLERS: usize = 24;
const CALLS: usize = 150;
const KEYS: [&str; 3] = ["a", "b", "c"];
const LIFE: Duration = Duration::from_millis(1);

type Builder = SingleFlightBuilder<u64, String>;

const SETTINGS: [fn(Builder) -> Builder; 5] = [
    |plain| plain,
    |with_errors| with_errors.share_errors(Postcard).error_ttl(LIFE),
    |for_nobody| {
        for_nobody
            .share_unpublished(false)
            .ttl_with(|run| run.is_multiple_of(2).then_some(LIFE))
    },
    |stale| stale.stale_while_revalidate(LIFE * 3),
    |going_on| going_on.go_on(true),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_come_and_go() {
    for settings in SETTINGS {
        for place in [Place::in_memory(3), Place::redis(3).await] {
            come_and_go(&place, settings).await;
        }
    }
}

/// A call that lasts for some polls, is dropped at any time (then `None`) or never, and may fail (then `false`).
async fn visit(flight: &Flight, work: &Work) -> Option<bool> {
    let (key, lasts, fails, patience) = {
        let mut rng = rand::rng();
        let patience = rng.random_bool(0.5).then(|| rng.random_range(0..60));
        (
            KEYS[rng.random_range(0..KEYS.len())],
            rng.random_range(0..8),
            rng.random_bool(0.2),
            patience,
        )
    };
    let run = work.run();
    let work = move || async move {
        for _ in 0..lasts {
            yield_now().await;
        }
        let run = run().await?;
        if fails { Err(run.to_string()) } else { Ok(run) }
    };
    let gives_up = async {
        match patience {
            Some(turns) => {
                for _ in 0..turns {
                    yield_now().await;
                }
            }
            None => std::future::pending().await,
        }
    };
    let outcome = tokio::select! {
        outcome = timeout(SOON, flight.try_run(key, work)) => outcome,
        () = gives_up => return None,
    };
    match outcome.expect("a caller is forgotten") {
        Ok(_) => Some(true),
        Err(RunError::Failed(_)) => Some(false),
        Err(RunError::Flight(error)) => panic!("{error}"),
    }
}

/// Whoever stays gets an answer, and in the end nothing is left.
async fn come_and_go(place: &Place, settings: fn(Builder) -> Builder) {
    let build = |store| {
        settings(builder().ttl(LIFE))
            .build(store, "flights")
            .unwrap()
    };
    let flights: Vec<Flight> = place.stores.iter().map(build).collect();
    let work = Work::open();
    let callers = (0..CALLERS).map(|caller| {
        let (flight, work) = (flights[caller % flights.len()].clone(), work.clone());
        tokio::spawn(async move {
            let mut ends = [0; 3];
            for _ in 0..CALLS {
                ends[visit(&flight, &work).await.map_or(2, usize::from)] += 1;
            }
            ends
        })
    });
    let mut ends = [0; 3];
    for caller in join_all(callers.collect::<Vec<_>>()).await {
        ends.iter_mut()
            .zip(caller.unwrap())
            .for_each(|(sum, count)| *sum += count);
    }
    let [failed, answered, gone] = ends;
    println!(
        "{} runs; {failed} calls failed, {answered} got an answer, {gone} went away",
        work.runs()
    );
    assert!(answered > 0 && gone > 0, "{ends:?}");
    work.is_over().await;
    for key in KEYS {
        place.free(key).await;
        // An error that is shared may not have run out yet.
        let outcome = timeout(SOON, flights[0].try_run(key, work.run()))
            .await
            .expect("it is stuck");
        assert!(!matches!(outcome, Err(RunError::Flight(_))), "{outcome:?}");
        place.free(key).await;
    }
    place.leaves_nothing();
}
