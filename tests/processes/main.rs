//! Several processes on one Redis, with a referee who is no part of the library: what is free, or done by another, in time after
//! a process was killed, who goes first, and what clocks of processes change.
//!
//! Each process tells the [`referee`], a Redis of its own, what it does. The referee writes all of it down in one order and by one
//! clock, which the [`judge`] reads in the end: so nothing depends on the clock of a process, nor on how late a process is.
//!
//! What all primitives do under each fault is judged by `tests/faults/table`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fleet;
mod judge;
mod referee;

#[cfg(feature = "postcard")]
mod flights;
mod foreign;
mod kills;
mod limits;
mod queue;
