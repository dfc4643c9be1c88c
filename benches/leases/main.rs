//! How many locks and permits a second, and what holding and waiting cost the server, beside rslock, on a
//! redis-server of its own.
//!
//! ```text
//! cargo bench --bench leases                     everything: the table, then every figure
//! cargo bench --bench leases -- mutex            only the figures whose names contain that
//! cargo bench --bench leases -- table            only the table
//! ROUNDS=9 SECONDS=0.5 cargo bench …             rounds (at least 5 for a figure to count), length of a cell
//! HOLD=20 IDLE=5 cargo bench …                   how long leases are held, and waiters watched, in seconds
//! ONLY=Mutex cargo bench …                       one contestant of the table alone, for a profiler
//! ```
//!
//! A figure stands on a line of its own: `figure NAME NUMBER`. All contestants take turns within each round;
//! a ratio is taken within the round, and the figure is the median of the rounds. What leases that are held and
//! waiters that wait cost is counted by the server, so once is enough.
//!
//! How often two hold one lock at once is no figure of a bench: the table of faults counts it, in the column "double
//! grants":
//!
//! ```text
//! FAULTS=long cargo test --test faults --all-features table -- --nocapture
//! ```

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/child.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
mod contestants;
mod figures;
mod held;
mod idle;
mod load;
mod pairs;
mod processes;
mod sample;
mod throughput;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(role) = child::Role::of_this_process() {
        return processes::play(&role);
    }
    common::run(|bench| {
        throughput::run(bench);
        held::run(bench)?;
        idle::run(bench)
    })
}
