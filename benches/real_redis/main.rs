//! Redis as users run it: a Cluster, TLS, outages. On servers of its own.
//!
//! ```text
//! cargo bench --bench real_redis --all-features                every figure
//! cargo bench --bench real_redis --all-features -- cluster     only the figures whose names contain that
//! KILLS=20 cargo bench …                                       how often a master is killed for `double-grants-…`
//! ROUNDS=9 SECONDS=0.5 cargo bench …                           rounds (at least 5 for a figure to count), their length
//! ```
//!
//! A figure stands on a line of its own: `figure NAME NUMBER`. All contestants take turns within each round;
//! a ratio is taken within the round, and the figure is the median of the rounds.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/faults/certificates.rs"]
mod certificates;
#[path = "../common/child.rs"]
mod child;
mod cluster;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod double_grants;
mod drive;
mod failover;
mod handovers;
mod outage;
mod tls;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(role) = child::Role::of_this_process() {
        return handovers::play(&role);
    }
    common::run(|bench| {
        cluster::run(bench);
        handovers::run(bench);
        tls::run(bench);
        failover::run(bench);
        double_grants::run(bench);
        outage::run(bench);
        Ok(())
    })
}
