//! What must not grow.

use std::fs;
use std::time::Duration;

use deadpool_redis::redis::cmd;

use super::fleet::Gateway;
use crate::common::stats::median;
use crate::watch::{connect, connections, rss, status};
use support::keys::keys_without_ttl;
use support::replicated::ReplicatedCluster;

/// By how much each may be larger in the last third than in the first: a share, and a number.
const QUANTITIES: [(&str, f64, f64); 8] = [
    ("RSS of the lasting gateway, MiB", 0.05, 3.0),
    ("its descriptors, without connections of callers", 0.0, 4.0),
    ("its threads", 0.0, 2.0),
    ("connections for calls to all nodes", 0.0, 6.0),
    ("connections subscribed at all nodes", 0.0, 3.0),
    ("channels", 0.0, 6.0),
    ("keys", 0.1, 50.0),
    ("keys without a ttl", 0.0, 0.0),
];

/// The first tenth of the time is not judged.
const WARM_UP: u32 = 10;

pub struct Sample {
    at: Duration,
    values: [f64; QUANTITIES.len()],
}

impl Sample {
    pub fn take(at: Duration, gateway: &Gateway, cluster: &ReplicatedCluster) -> Self {
        let (mut calls, mut subscribed, mut channels) = (0, 0, 0);
        for node in cluster.nodes() {
            let mut client = connect(node);
            let counted = connections(&mut client);
            calls += counted.0;
            subscribed += counted.1;
            for kind in ["CHANNELS", "SHARDCHANNELS"] {
                channels += client
                    .query::<Vec<String>>(cmd("PUBSUB").arg(kind))
                    .unwrap()
                    .len();
            }
        }
        let masters = cluster.masters();
        let keys: u64 = masters
            .iter()
            .map(|node| node.query::<u64>(&["DBSIZE"]).unwrap())
            .sum();
        let lasting: usize = masters
            .into_iter()
            .map(|node| keys_without_ttl(node).len())
            .sum();
        let process = gateway.process;
        let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        let threads = status(process, "Threads").parse().unwrap();
        let values = [
            rss(process) as f64 / 1_048_576.0,
            open.saturating_sub(callers(gateway.port)) as f64,
            threads,
            calls as f64,
            subscribed as f64,
            channels as f64,
            keys as f64,
            lasting as f64,
        ];
        Self { at, values }
    }
}

/// The connections to a port of this host.
fn callers(port: u16) -> usize {
    let local = format!("0100007F:{port:04X}");
    let is_open = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        // Neither one that listens nor one that is over.
        words[1] == local && !matches!(words[3], "0A" | "06")
    };
    fs::read_to_string("/proc/net/tcp")
        .unwrap()
        .lines()
        .filter(is_open)
        .count()
}

/// A quantity, its medians in the first third and the last third, and what the last may be.
pub fn thirds(
    samples: &[Sample],
    length: Duration,
) -> impl Iterator<Item = (&'static str, [f64; 3])> {
    let warm = length / WARM_UP;
    let third = (length - warm) / 3;
    let mean = move |number: usize, from, to| {
        let within = samples
            .iter()
            .filter(move |sample| sample.at >= from && sample.at < to);
        median(within.map(|sample| sample.values[number]))
    };
    QUANTITIES
        .iter()
        .enumerate()
        .map(move |(number, (name, share, slack))| {
            let first = mean(number, warm, warm + third);
            let last = mean(number, length - third, length);
            (*name, [first, last, first * (1.0 + share) + slack])
        })
}
