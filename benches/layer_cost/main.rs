//! What a layer costs a service and its redis-server: CPU per request above the same handler without the layer, beside what
//! users write by hand for the same job.
//!
//! ```text
//! cargo bench --bench layer_cost                  every figure; needs wrk and redis-server
//! cargo bench --bench layer_cost -- mutex         only the figures whose names contain that
//! ROUNDS=9 SECONDS=2 cargo bench --bench layer_cost
//! ONLY=memory cargo bench --bench layer_cost      only the services whose titles contain that, without ratios
//! ```
//!
//! Each service is a process of its own, and all take turns within each round. wrk sends requests over 64 connections, each
//! with a key of its own. By hand: one shared connection of redis-rs with TCP_NODELAY, one script per step, no renewals, no
//! time-outs, no fences that outlast a lock.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../lone/by_hand.rs"]
mod by_hand;
#[path = "../common/child.rs"]
mod child;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/cpu.rs"]
mod cpu;
mod hand_layers;
mod rounds;
#[path = "../common/served.rs"]
mod served;
mod services;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/wrk.rs"]
mod wrk;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(role) = child::Role::of_this_process() {
        return services::play(&role);
    }
    common::run(rounds::run)
}
