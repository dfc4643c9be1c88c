//! The example `envoy`: its rules, its decisions over gRPC, and real Envoys in front of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code)]
#[path = "../rules.rs"]
mod rules;
#[allow(dead_code)]
#[path = "../yaml.rs"]
mod yaml;

mod decisions;
mod edge;
mod parsing;
mod reflection;
mod reload;
mod scene;
