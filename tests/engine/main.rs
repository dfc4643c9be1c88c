//! The store engine: runtimes that do not depend on each other, outages, overload, and what they cost.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod scene;

#[cfg(feature = "cluster")]
mod cluster;
mod embeddings;
mod ends;
mod leases;
mod no_runtime;
mod outages;
mod overload;
mod reconnects;
mod secrets;
mod slow;
mod stalled;
mod undo;
