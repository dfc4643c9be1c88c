//! What is told and counted, of real outages and decisions; see `tower_distributed::telemetry`.
#![cfg(all(feature = "tracing", feature = "metrics"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod configuration;
mod decisions;
mod filters;
mod floods;
mod leases;
mod misconfigured;
mod outages;
mod seen;

use std::time::Duration;

/// What never may be told.
pub(crate) const KEY: &str = "user-4711";
pub(crate) const PASSWORD: &str = "hunter2";

/// Enough for what is to happen soon.
pub(crate) const SOON: Duration = Duration::from_secs(30);
