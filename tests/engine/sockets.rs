//! The options of the sockets, as the system has them.

use std::fs::read_to_string;

use tower_distributed::Store;

use crate::scene::{SOON, is_served, wide_bucket};
use support::redis_server::RedisServer;
use support::{eventually, patient};

/// The timers of the established connections to a port of this machine: 0: none, 2: the next probe.
fn timers(port: u16) -> Vec<String> {
    let (peer, table) = (
        format!(":{port:04X}"),
        read_to_string("/proc/self/net/tcp").unwrap(),
    );
    let timer = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[_, _, remote, "01", _, timer, ..] = &fields[..] else {
            return None;
        };
        remote.ends_with(&peer).then(|| timer[..2].to_owned())
    };
    table.lines().filter_map(timer).collect()
}

#[tokio::test]
async fn an_idle_connection_is_probed_unless_there_is_no_keepalive() {
    for (builder, timer) in [(patient!(), "02"), (patient!().tcp_keepalive(None), "00")] {
        let server = RedisServer::start().await;
        let store = builder.redis(&server.url()).unwrap();
        assert!(is_served(&wide_bucket(&store).allow("k").await));
        // What is not acknowledged has a timer of its own.
        eventually("the timer of the connection", SOON, async || {
            timers(server.port()) == [timer]
        })
        .await;
    }
}
