//! Requests that are handled under leases: what their layers owe to the services around them, held against services
//! that forgive nothing, and real stacks over sockets.

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

mod asked;
mod away;
mod axum_locks;
mod axum_permits;
mod bodies;
mod clients;
mod decided_first;
mod dropped;
mod hyper_server;
mod layers;
mod lost;
mod readiness;
mod refused;
mod shared;
mod stalled_bodies;
mod statuses;
mod taken;
mod tonic_server;
mod tower_around;
mod upgrades;
