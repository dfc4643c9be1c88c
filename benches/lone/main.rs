//! What one call alone pays, where nothing combines.
//!
//! ```text
//! cargo bench --bench lone                every figure, 1 min
//! cargo bench --bench lone -- permit      only the figures whose names contain that
//! ```
//!
//! `lone-script-vs-hand-…` is the server's time of the two calls of a pair, beside scripts that users write for the same
//! job. The calls of this crate are recorded by MONITOR, and sent again in pipelines, each with a token of its own. The
//! server's time is that of `INFO commandstats`. Each contestant runs 30 rounds in turn, of which the shortest counts:
//! other programs only ever add to it.
//!
//! This crate calls functions there, and those who write scripts by hand send them by EVALSHA. `lone-evalsha-vs-hand-…` is
//! this crate without functions beside the same, and `lone-fcall-vs-hand-…` has functions on both sides.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod by_hand;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/cpu.rs"]
mod cpu;
mod scripts;
mod service;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::run(|bench| {
        scripts::run(bench);
        service::run(bench);
        Ok(())
    })
}
