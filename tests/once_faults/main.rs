//! What becomes of things that are to be done once when callers, Redis, or the way to it fail.
#![cfg(feature = "postcard")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod places;
mod work;

mod crowds_of_flights;
mod dropped_flights;
#[cfg(all(feature = "json", feature = "tracing", feature = "metrics"))]
mod events;
mod flights;
mod flights_away;
mod hung_flights;
mod local_cache;
mod published;
