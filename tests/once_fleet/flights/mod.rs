//! Single flights.

mod crowd;
mod kills;
mod stops;

use std::time::Duration;

use tower_distributed::single_flight::Postcard;
use tower_distributed::{SingleFlight, Store};

/// What is shared: bytes that no other run gives.
type Flights = SingleFlight<Vec<u8>>;

/// Answers that live to the end of the test.
fn flights(store: &Store, ttl: Duration) -> Flights {
    let builder = SingleFlight::builder(Postcard).ttl(Duration::from_secs(3600));
    builder.lease_ttl(ttl).max_wait(Duration::from_secs(600)).build(store, "flights").unwrap()
}
