//! Several processes on one Redis: locks beside those of another library, limits, and what clocks of processes change.
//!
//! Each process tells a referee, a Redis of its own, what it does, or asks it for the time. So nothing depends on the clock of a
//! process, nor on how late a process is.
//!
//! What all primitives do under each fault, also where processes are killed, is judged by `tests/faults/table`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fleet;
mod foreign;
mod limits;
