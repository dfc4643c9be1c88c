//! Several processes on one Redis that are to do things once, with a referee who is no part of the library.
//!
//! What is done is done at the [`referee`], a Redis of its own, which writes down who has begun what and what each
//! caller got, in one order and by one clock.
#![cfg(feature = "postcard")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code)]
#[path = "../leases_fleet/referee.rs"]
mod referee;

mod fleet;
mod origin;

mod flights;
