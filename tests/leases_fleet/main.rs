//! Several processes on one Redis and its leases, with a referee who is no part of the library.
//!
//! Each process tells the [`referee`], a Redis of its own, when it enters and leaves what a lease stands for. The
//! referee writes all of it down in one order, which the [`judge`] reads in the end: so nothing depends on
//! anybody's clock, nor on how late a process is.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fleet;
mod judge;
mod referee;

mod foreign;
mod kills;
mod late_link;
mod one_lock;
mod permits;
mod queue;
mod read_write;
mod shutdown;
mod starvation;
mod stops;
mod two_holders;
