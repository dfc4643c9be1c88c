//! Fairness: who is served first when many wait, and what that costs.
//!
//! ```text
//! cargo bench --bench fairness               every figure, 1 min
//! cargo bench --bench fairness -- fair-      only the figures whose names contain that
//! ```

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod classes;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod shares;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::run(|bench| {
        shares::run(bench);
        classes::run(bench);
        Ok(())
    })
}
