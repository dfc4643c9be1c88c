//! What every layer owes to the services around it, held against services that forgive nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../support/mod.rs"]
mod support;

#[path = "../stacks/stores.rs"]
mod stores;

mod asked;
mod away;
mod bounds;
mod decided_first;
mod dropped;
mod hooks;
mod keys;
mod known_refusals;
mod limits;
mod overloaded;
mod probe;
mod readiness;
mod refused;
mod several;
mod shared;
