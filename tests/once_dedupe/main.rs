//! Several processes that are to handle each item once, with a referee who is no part of the library.
#![cfg(feature = "http")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code)]
#[path = "../leases_fleet/referee.rs"]
mod referee;

mod fleet;
mod judge;
mod messages;

mod one_new;
mod redelivery;
mod stops;
