//! Queues and limits over a fleet.
//!
//! ```text
//! cargo bench --bench fairness --all-features                every figure
//! cargo bench --bench fairness --all-features -- fair-       only the figures whose names contain that
//! SECONDS=10 cargo bench --bench fairness --all-features -- adaptive   the capacity changes every 20 s, 10 min
//! ```

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adaptive;
mod adaptive_faults;
mod classes;
mod cluster;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod fleets;
mod shares;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::run(|bench| {
        shares::run(bench);
        classes::run(bench);
        fleets::run(bench);
        adaptive::run(bench);
        adaptive_faults::run(bench);
        cluster::run(bench);
        Ok(())
    })
}
