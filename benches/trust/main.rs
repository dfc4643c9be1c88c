//! What holds after minutes of load, and after days.
//!
//! ```text
//! cargo bench --bench trust                    every figure, 140 s
//! cargo bench --bench trust -- long-permits    only the figures whose names contain that
//! SECONDS=20 cargo bench --bench trust         a shorter load
//! cargo bench --bench trust -- mass-timeout    20 000 waiters that time out together
//! ```

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod mass_timeout;
mod permits;
mod queue;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::run(|bench| {
        if bench.settings.wants("long-queue") {
            queue::run(bench);
        }
        if bench.settings.wants("long-permits") {
            permits::run(bench);
        }
        if bench.settings.wants("mass-timeout-stall-ms") {
            mass_timeout::run(bench);
        }
        Ok(())
    })
}
