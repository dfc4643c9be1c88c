//! Requests that are handled once for many: what the layer owes to the services around it, held against services that
//! forgive nothing, real stacks over sockets, and users who must not get what is another's.

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
#[allow(dead_code)]
#[path = "../stacks/upstream.rs"]
mod upstream;

mod asked;
mod axum_apps;
mod bodies;
mod bounds;
mod caching;
mod clients;
mod dropped;
mod flights;
mod grpc;
mod hyper_server;
mod messages;
mod our_layers;
mod outcomes;
mod privacy;
mod readiness;
mod refused;
mod shared;
mod statuses;
#[cfg(feature = "tracing")]
mod told;
mod tower_around;
