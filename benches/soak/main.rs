//! A gateway with every layer of this crate, at full speed for a while: no error, no growth, no more connections than
//! the docs state. On one server, then on a Cluster of three masters.
//!
//! ```text
//! cargo bench --bench soak --all-features                 60 s on each
//! SECONDS=600 cargo bench --bench soak --all-features     10 minutes on each
//! cargo bench --bench soak --all-features -- cluster      one of the two, by part of its name
//! cargo bench --bench soak --all-features -- deploys      beside restarts, failovers and deploys: see `deploys`
//! cargo test --bench soak --all-features                  3 s on each, without the bounds of memory
//! ```
//!
//! The gateway is a process of its own, and so are the servers. The callers are tasks of this process; they use real
//! connections of HTTP/1.1. The bench fails if a bound does not hold: see `judge`.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/child.rs"]
mod child;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod deploys;
mod gateway;
mod judge;
mod load;
mod routes;
mod watch;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::child::{Child, Role};
use crate::common::settings::{Settings, seconds};
use crate::judge::Judged;
use crate::load::Crowd;
use crate::watch::Watch;
use support::cluster::RedisCluster;
use support::program::since_7_0;
use support::redis_server::RedisServer;

const ONE: &str = "one-server";
const CLUSTER: &str = "cluster";
/// Only if it is asked for.
const DEPLOYS: &str = "deploys";

const CALLERS: u64 = 128;

/// In seconds.
const SOAK: f64 = 60.0;
const TEST: f64 = 3.0;

fn main() -> ExitCode {
    if let Some(role) = Role::of_this_process() {
        return gateway::play(&role);
    }
    // `cargo test` leaves this argument out.
    let default = if env::args().any(|argument| argument == "--bench") {
        SOAK
    } else {
        TEST
    };
    let (settings, length) = (
        Settings::read().unwrap(),
        seconds("SECONDS", default).unwrap(),
    );
    let runtime = common::runtime().unwrap();
    let mut holds = true;
    deploys::forged::prove();
    if env::args().any(|argument| argument == DEPLOYS) {
        assert!(since_7_0(), "the Cluster needs Redis 7.0");
        holds &= deploys::soak(&runtime, length);
    }
    if settings.wants(ONE) {
        let server = runtime.block_on(RedisServer::start());
        holds &= soak(&runtime, ONE, &[&server], length);
    }
    if settings.wants(CLUSTER) && since_7_0() {
        let cluster = runtime.block_on(RedisCluster::start());
        let nodes: Vec<_> = cluster.nodes().iter().collect();
        holds &= soak(&runtime, CLUSTER, &nodes, length);
    }
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Whether all bounds hold. Prints what was measured.
fn soak(runtime: &Runtime, name: &str, servers: &[&RedisServer], length: Duration) -> bool {
    let urls: Vec<_> = servers.iter().map(|server| server.url()).collect();
    let mut gateway = child::start(1, name, &urls.join(","));
    let told: Vec<u32> = gateway.iter_mut().flat_map(Child::numbers).collect();
    let (port, process) = (u16::try_from(told[0]).unwrap(), told[1]);
    let watch = Watch::start(process, servers, length);
    let crowd = Crowd {
        callers: CALLERS,
        pause: 0,
        spread: 10,
        gateways: Arc::new(vec![port].into()),
        deadline: Duration::from_secs(20),
        referee: None,
    };
    let load = runtime.block_on(crowd.run(length));
    let judged = Judged {
        name,
        length,
        load: &load,
        samples: &watch.stop(),
    };
    judged.print();
    let problems = judged.problems();
    problems
        .iter()
        .for_each(|problem| eprintln!("{name}: {problem}"));
    problems.is_empty()
}
