//! What happens when Redis, or the way to it, fails.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod certificates;
#[cfg(feature = "cluster")]
mod cluster;
mod crashes;
mod credentials;
#[cfg(feature = "sentinel")]
mod failover;
mod network;
mod not_serving;
mod pools;
mod several;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod tls;
mod woken;
