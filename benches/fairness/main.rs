//! What a fleet does under load: limits that adapt.
//!
//! ```text
//! cargo bench --bench fairness                          every figure, 1 min
//! SECONDS=10 cargo bench --bench fairness -- adaptive   the capacity changes every 20 s, 10 min
//! ```

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adaptive;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::run(|bench| {
        adaptive::run(bench);
        Ok(())
    })
}
