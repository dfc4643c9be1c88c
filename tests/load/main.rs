//! The example `load`: what it prints, and that it finds broken promises.
#![cfg(all(feature = "http", feature = "postcard"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod checks;
mod runs;

// The parts of the example that judge, to see what they say of forged calls.
#[allow(dead_code)]
#[path = "../../examples/load/args.rs"]
mod args;
#[allow(dead_code)]
#[path = "../../examples/load/check/mod.rs"]
mod check;
#[path = "../../examples/load/clock.rs"]
mod clock;
#[allow(dead_code)]
#[path = "../../examples/load/message.rs"]
mod message;
#[allow(dead_code)]
#[path = "../../examples/load/recorder.rs"]
mod recorder;
#[allow(dead_code)]
#[path = "../../examples/load/totals.rs"]
mod totals;

use support::interval_bound;
