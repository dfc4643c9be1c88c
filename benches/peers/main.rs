//! This crate beside libraries of other languages: rate-limiter-flexible of Node.js, and `redis.lock.Lock` of Python's
//! redis-py. `benches/peers/run.sh` installs them below `target/peers` and runs this.
//!
//! ```text
//! benches/peers/run.sh                              every figure
//! benches/peers/run.sh lock                         only the figures whose names contain that
//! ROUNDS=9 SECONDS=0.5 benches/peers/run.sh         rounds (at least 5 for a figure to count), length of each
//! ```
//!
//! A figure stands on a line of its own: `figure NAME NUMBER`. Each contestant is a process of its own with one thread
//! for its callers, or two such processes; this crate too. They take turns at one redis-server; a ratio is taken within
//! the round, and the figure is the median of the rounds. A peer that is not installed is passed over.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/child.rs"]
mod child;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod contestants;
mod decisions;
mod locks;
mod tasks;

use std::process::ExitCode;

fn main() -> ExitCode {
    match child::Role::of_this_process() {
        Some(role) => contestants::play(&role),
        None => common::run(|bench| {
            tasks::run(bench);
            Ok(())
        }),
    }
}
