//! Guides: how to use this crate for a task.
//!
//! | page | |
//! |---|---|
//! | [`on_axum`] | keys, the order of layers, CORS, nested routers |
//! | [`on_tonic`] | layers, keys and statuses for gRPC |
//! | [`outbound`] | a client that keeps to the limit of another service |
//! | [`jobs`] | scheduled jobs, lock or skip, fencing |
//! | [`operations`] | running the Redis behind this crate: ACL, TLS, Cluster, Sentinel, sizing, monitoring |
//! | [`coming_from`] | what the parts of other libraries are called here |
//! | [`architecture`] | how this crate is built, and its invariants |
//! | [`errors`] | messages and what to do about them |
//!
//! See also [`guarantees`](crate::guarantees) and [`telemetry`](crate::telemetry).

#[cfg(feature = "axum")]
#[doc = include_str!("docs/guide/on_axum.md")]
pub mod on_axum {}

#[cfg(feature = "tonic")]
#[doc = include_str!("docs/guide/on_tonic.md")]
pub mod on_tonic {}

#[cfg(feature = "http")]
#[doc = include_str!("docs/guide/outbound.md")]
pub mod outbound {}

#[doc = include_str!("docs/guide/jobs.md")]
pub mod jobs {}

#[doc = include_str!("docs/guide/errors.md")]
pub mod errors {}

#[cfg(feature = "http")]
#[doc = include_str!("docs/guide/operations.md")]
pub mod operations {}

#[cfg(feature = "http")]
#[doc = include_str!("docs/guide/coming_from.md")]
pub mod coming_from {}

#[doc = include_str!("docs/guide/architecture.md")]
pub mod architecture {}
