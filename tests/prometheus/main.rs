//! The example `prometheus`: its dashboard and its alerts name only metrics and labels that exist.
#![cfg(all(feature = "http", feature = "metrics", feature = "postcard"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod alerts;
mod dashboard;
mod expression;
mod names;
mod scraped;
