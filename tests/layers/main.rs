//! The layers: what each owes to the services around it, held against services that forgive nothing, and real stacks
//! over sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]
// Without features, there are fewer tests for what all share.
#![cfg_attr(not(all(feature = "http", feature = "tonic")), allow(dead_code))]

mod families;
mod flights;
#[cfg(all(feature = "http", feature = "tonic"))]
mod health;
mod items;
#[cfg(feature = "http")]
mod net;
mod probe;
mod stores;
#[cfg(feature = "http")]
mod upstream;

#[cfg(feature = "http")]
mod budget;
#[cfg(feature = "http")]
mod budgets;
mod contract;
#[cfg(all(feature = "http", feature = "tonic"))]
mod dedupe;
#[cfg(all(feature = "http", feature = "tonic"))]
mod leases;
mod rate_limit;
#[cfg(all(feature = "http", feature = "tonic"))]
mod single_flight;
#[cfg(feature = "http")]
mod stacks;
