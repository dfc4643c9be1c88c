//! How soon followers have their leader's answer, how many join a flight, what a Bloom filter costs and what
//! deduplication asks, on a redis-server of its own.
//!
//! ```text
//! cargo bench --bench once                       every figure
//! cargo bench --bench once -- bloom              only the figures whose names contain that
//! ROUNDS=9 SECONDS=0.5 cargo bench …             rounds (at least 5 for a figure to count), length of each
//! ONLY=BloomFilter cargo bench …                 one contestant alone, for a profiler
//! ```
//!
//! A figure stands on a line of its own: `figure NAME NUMBER`. All contestants take turns within each round;
//! a ratio is taken within the round, and the figure is the median of the rounds. What is counted by the server
//! is counted once.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod callers;
#[path = "../common/child.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
mod dedupe_bytes;
mod dedupe_pairs;
mod filters;
mod followers;
mod http;
mod joins;
mod large;
mod memory;
mod one_script_each;
mod round_trips;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(role) = child::Role::of_this_process() {
        return followers::play(&role);
    }
    common::run(|bench| {
        followers::run(bench);
        joins::run(bench);
        http::run(bench);
        large::run(bench);
        filters::run(bench);
        memory::run(bench);
        round_trips::run(bench);
        dedupe_bytes::run(bench);
        dedupe_pairs::run(bench);
        Ok(())
    })
}
