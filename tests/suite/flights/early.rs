//! Answers that are made anew before their life is over.

use std::time::Duration;

use tower_distributed::single_flight::SingleFlightBuilder;
use tower_distributed::{SingleFlight, Store};

use super::{Origin, begin_run, builder, ended, forgets_meanwhile, refreshing, several};
use crate::stores::{Place, SOON};
use support::eventually;

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
            assert_eq!(flights[0].run("k", origin.work()).await.unwrap(), run - 1, "nobody waits");
            origin.runs() == run
        })
        .await;
        // Nor while it is under way, here or elsewhere; and there is one.
        for flight in &flights {
            assert_eq!(flight.run("k", origin.work()).await.unwrap(), run - 1);
        }
        origin.let_go(1);
        eventually("the fresh one", SOON, async || flights[1].run("k", origin.work()).await.unwrap() == run)
            .await;
    }
}

/// Who asks after an answer was forgotten waits for the run that is under way.
#[tokio::test(start_paused = true)]
async fn what_is_forgotten_is_not_served_by_an_early_run() {
    let flight: SingleFlight<u64> = early().build(&Store::in_memory(), "early").unwrap();
    let origin = Origin::shut();
    let first = begin_run(&flight, &origin).await;
    tokio::time::sleep(RUN).await; // what the run takes
    origin.let_go(1);
    assert_eq!(ended(first).await.unwrap(), 1);
    refreshing(&flight, &origin).await;
    forgets_meanwhile(&flight, &origin).await;
}
