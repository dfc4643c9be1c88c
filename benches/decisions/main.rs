//! How many decisions a second, beside the peers, on a redis-server of its own.
//!
//! ```text
//! cargo bench --bench decisions                  everything: the tables, then every figure
//! cargo bench --bench decisions -- hot-key       only the figures whose names contain that
//! cargo bench --bench decisions -- table         only the tables
//! ROUNDS=9 SECONDS=0.5 cargo bench …             rounds (at least 5 for a figure to count), length of a cell
//! ONLY='our RateLimitLayer' cargo bench …        one contestant of a table alone, for a profiler
//! IDLE=60 cargo bench …                          how long idle processes are watched, in seconds
//! cargo bench --bench decisions --features cluster    with the figure that needs a Cluster
//! ```
//!
//! A figure stands on a line of its own: `figure NAME NUMBER`. All contestants take turns within each round;
//! a ratio is taken within the round, and the figure is the median of the rounds.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cell;
#[path = "../common/child.rs"]
mod child;
#[cfg(feature = "cluster")]
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod contestants;
#[path = "../common/cpu.rs"]
mod cpu;
mod hot;
mod idle;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod in_memory_bytes;
mod kill;
mod layer;
mod local_refusals;
mod memory;
mod overload;
mod several;
mod single_caller;
mod throughput;
mod workload;

use std::process::ExitCode;

use self::child::Role;

fn main() -> ExitCode {
    if let Some(role) = Role::of_this_process() {
        return play(&role);
    }
    common::run(|bench| {
        throughput::run(bench);
        single_caller::run(bench);
        layer::run(bench);
        several::run(bench);
        local_refusals::run(bench);
        hot::run(bench);
        memory::run(bench);
        overload::run(bench);
        kill::run(bench);
        #[cfg(feature = "cluster")]
        cluster::run(bench);
        #[cfg(not(feature = "cluster"))]
        common::missing(bench, "cluster-healthy-share", "the feature `cluster`");
        idle::run(bench);
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        in_memory_bytes::run(bench);
        #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
        ["in-memory-bytes-after-idle-ratio", "local-share-mib"]
            .iter()
            .for_each(|name| common::missing(bench, name, "glibc"));
        Ok(())
    })
}

/// Does the part of a copy.
fn play(role: &Role) -> ExitCode {
    match &*role.name {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        in_memory_bytes::ROLE | in_memory_bytes::SHARE_ROLE => in_memory_bytes::play(role),
        _ => idle::play(role),
    }
}
