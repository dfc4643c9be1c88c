//! What one redis-server carries, and what a Cluster of n masters: bytes per key, CPU time of the server per operation,
//! the capacities that follow from them, and one measured point for each. The guide `scale` explains the tables.
//!
//! ```text
//! cargo bench --bench scale --all-features               every table, about 8 minutes
//! cargo bench --bench scale --all-features -- cpu        one of: bytes, cpu, subscribers, waiters, leases, cluster
//! ONLY=mutex cargo bench …                               only rows of `bytes` and `cpu` that have this in their title
//! ROUNDS=9 IDLE=60 cargo bench …                         rounds of `cpu` and `cluster`; how long leases and waiters are
//!                                                        watched, in seconds
//! ```
//!
//! CPU time is that of the main thread of redis-server, as `INFO cpu` tells it.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bytes;
mod cluster;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod cpu;
mod drive;
mod leases;
mod meter;
mod operations;
mod replay;
mod subscribers;
mod waiters;

use std::process::ExitCode;

/// A table, and the name by which it is asked for.
type Table = (&'static str, fn(&common::Bench));

fn main() -> ExitCode {
    common::run(|bench| {
        let tables: [Table; 6] = [
            ("bytes", bytes::run),
            ("cpu", cpu::run),
            ("subscribers", subscribers::run),
            ("waiters", waiters::run),
            ("leases", leases::run),
            ("cluster", cluster::run),
        ];
        for (name, run) in tables {
            if bench.settings.wants(name) {
                bench.server.empty();
                run(bench);
            }
        }
        Ok(())
    })
}
