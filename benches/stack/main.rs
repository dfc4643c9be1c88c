//! What layers take of an axum service's requests per second: the same handler alone and within them, under wrk, on one
//! machine with the servers. And what a newcomer waits for.
//!
//! ```text
//! cargo bench --bench stack                               the shares; needs wrk and redis-server
//! cargo bench --bench stack -- prefetch                   only the figures whose names contain that
//! cargo bench --bench stack -- table                      the table of all services, without figures
//! ROUNDS=9 SECONDS=2 cargo bench --bench stack            rounds (at least 5 for a figure to count), whole seconds of each
//! ONLY=five cargo bench --bench stack                     one service alone, for a profiler
//! BUILD=1 cargo bench --bench stack -- cold page          the two figures that compile: minutes
//! ```
//!
//! A figure stands on a line of its own: `figure NAME NUMBER`. All services take turns within each round; a ratio is
//! taken within the round, and the figure is the median of the rounds. The bench fails if a request is not answered with
//! 200, or is not handled once by the handler: each request has an id and a query of its own, so there is nothing to
//! deduplicate and no flight to join.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/child.rs"]
mod child;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/cpu.rs"]
mod cpu;
mod newcomer;
mod rounds;
#[allow(dead_code, reason = "another bench uses the rest")]
#[path = "../common/served.rs"]
mod served;
mod services;
#[path = "../common/wrk.rs"]
mod wrk;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(role) = child::Role::of_this_process() {
        return services::play(&role);
    }
    common::run(|bench| {
        rounds::run(bench)?;
        newcomer::run(bench)
    })
}
