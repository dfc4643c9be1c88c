//! What calls take if there is a network between a service and its redis-server.
//!
//! ```text
//! cargo bench --bench network                     the tables, then every figure; Linux, as root
//! cargo bench --bench network -- p50              only the figures whose names contain that
//! cargo bench --bench network -- table            only the tables
//! ROUNDS=9 SECONDS=1 cargo bench --bench network  rounds, length of a cell
//! ```
//!
//! The bench runs in a network namespace of its own, and redis-server in another one. Two TUN devices join them. A thread of
//! the bench carries each packet from one device to the other, after half of the round trip. The namespaces, the devices and
//! the servers end with the bench, also if it is killed. On a machine that cannot do this, the bench says why and succeeds.
//!
//! The peer is the same scripts with the same arguments, one EVALSHA each, on one connection of redis-rs with TCP_NODELAY
//! that all callers share. Both take turns within each round.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;
#[cfg(target_os = "linux")]
use std::{panic, process};

#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../lone/by_hand.rs"]
mod by_hand;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
#[cfg(target_os = "linux")]
mod contestants;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(target_os = "linux")]
mod ping;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "other benches use the rest")]
#[cfg(target_os = "linux")]
mod rounds;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    if let Err(why) = namespaces::enter() {
        println!("passed over: this machine cannot emulate a network: {why}");
        return ExitCode::SUCCESS;
    }
    // Other callers would wait for one that panicked.
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        tell(panicked);
        process::exit(101);
    }));
    match link::Link::up() {
        Ok(link) => common::run_at(|| link.server(), |bench| rounds::run(bench, &link)),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    println!("passed over: the emulated network needs Linux");
    ExitCode::SUCCESS
}
