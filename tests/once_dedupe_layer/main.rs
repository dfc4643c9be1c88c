//! Requests that are handled once: what the layer owes to the services around it and to those who send them.

#![cfg(all(feature = "http", feature = "tonic"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code)]
#[path = "../stacks/net.rs"]
mod net;
#[path = "../layer_contract/probe.rs"]
mod probe;
#[allow(dead_code)]
#[path = "../stacks/stores.rs"]
mod stores;
#[path = "../stacks/upstream.rs"]
mod upstream;

mod around;
mod away;
mod axum_server;
mod duplicates;
mod exact;
mod idempotency;
mod items;
mod outcomes;
mod readiness;
mod tonic_server;
