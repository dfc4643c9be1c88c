//! Budgets: how much of a quota they use, what they cost, and how soon a fleet keeps to another limit.
//!
//! ```text
//! cargo bench --bench budgets                every figure, 1 min
//! cargo bench --bench budgets -- hot-key     only the figures whose names contain that
//! ```
//!
//! `budget-utilisation` and `budget-vs-…` are of 64 streams on a store in memory, the other figures of a redis-server and an axum
//! service of the bench's own.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod costs;
mod fleet;
mod learned;
mod streams;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::run(|bench| {
        streams::run(bench);
        costs::run(bench);
        fleet::run(bench);
        learned::run(bench);
        Ok(())
    })
}
