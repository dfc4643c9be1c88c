//! Single flights, one for each process.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower_distributed::SingleFlight;
use tower_distributed::single_flight::{Postcard, RunError, SingleFlightBuilder};

use crate::places::{LONG, Place, SOON};
use crate::work::Work;

pub(crate) type Flight = SingleFlight<u64, String>;
pub(crate) type Outcome = Result<u64, RunError<String>>;

/// Nothing ends by its time.
pub(crate) fn builder() -> SingleFlightBuilder<u64, String> {
    SingleFlight::builder(Postcard).ttl(LONG).lease_ttl(LONG).max_wait(LONG)
}

pub(crate) fn flights(place: &Place) -> Vec<Flight> {
    place.stores.iter().map(|store| builder().build(store, "flights").unwrap()).collect()
}

/// A call for a key.
pub(crate) fn call(
    flight: &Flight,
    key: &str,
    work: &Work,
) -> impl Future<Output = Outcome> + Send + 'static + use<> {
    let (flight, key, work) = (flight.clone(), key.to_owned(), work.run());
    async move { flight.try_run(key, work).await }
}

/// A call whose work runs.
pub(crate) async fn lead(flight: &Flight, key: &str, work: &Work) -> JoinHandle<Outcome> {
    let runs = work.runs();
    let caller = tokio::spawn(call(flight, key, work));
    work.began(runs + 1).await;
    caller
}

pub(crate) async fn ended(caller: JoinHandle<Outcome>) -> Outcome {
    timeout(SOON, caller).await.expect("a caller is forgotten").unwrap()
}
