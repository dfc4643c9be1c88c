//! Requests that are handled once: what the layer owes to the services around it and to those who send them.

mod away;
mod idempotency;
mod outcomes;
mod servers;
mod shutdown;

use tower_distributed::{Dedupe, Store};

/// Without false positives.
fn exact(store: &Store) -> Dedupe {
    let builder = Dedupe::exact(store, "exact").capacity(1000);
    builder
        .remember_for(std::time::Duration::from_secs(86_400))
        .build()
        .unwrap()
}
