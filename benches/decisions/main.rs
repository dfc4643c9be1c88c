//! How many decisions a second, beside the peers, on a redis-server of its own.
//!
//! ```text
//! cargo bench --bench decisions                  everything: the tables, then every figure
//! cargo bench --bench decisions -- hot-key       only the figures whose names contain that
//! cargo bench --bench decisions -- table         only the tables
//! ROUNDS=9 SECONDS=0.5 cargo bench …             rounds (at least 5 for a figure to count), length of a cell
//! ONLY='our RateLimitLayer' cargo bench …        one contestant of a table alone, for a profiler
//! ```
//!
//! A figure stands on a line of its own: `figure NAME NUMBER`. All contestants take turns within each round;
//! a ratio is taken within the round, and the figure is the median of the rounds.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cell;
#[path = "../common/mod.rs"]
mod common;
mod contestants;
mod layer;
mod local_refusals;
mod memory;
mod single_caller;
mod throughput;
mod workload;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::run(|bench| {
        throughput::run(bench);
        single_caller::run(bench);
        layer::run(bench);
        local_refusals::run(bench);
        memory::run(bench);
        Ok(())
    })
}
