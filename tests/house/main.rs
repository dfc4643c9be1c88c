//! What is around the library: its examples as processes, its pages and pictures, the modules and the Lua files, the messages of
//! the compiler, and the harness of the tests.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// The pictures name it as the example `pictures` does.
#[allow(dead_code)]
#[path = "../../examples/pictures/canvas.rs"]
mod canvas;
// The parts of the example `load` that judge, to see what they say of forged calls.
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

mod arrows;
#[cfg(all(feature = "operator", feature = "postcard", feature = "http"))]
mod forgeries;
#[cfg(feature = "http")]
mod gateway;
mod harness;
mod inspect;
#[cfg(all(feature = "http", feature = "postcard"))]
mod load;
mod modules;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod newcomer;
mod pictures;
#[cfg(all(feature = "http", feature = "metrics", feature = "postcard"))]
mod prometheus;
mod scripts;
#[cfg(all(feature = "axum", feature = "json"))]
mod ui;
mod words;
