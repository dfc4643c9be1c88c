//! Requests that are handled once: what the layer owes to the services around it and to those who send them.

mod away;
mod axum_server;
mod duplicates;
mod exact;
mod idempotency;
mod no_room;
mod outcomes;
mod shutdown;
mod tonic_server;
