//! Decisions on a Cluster of three masters, beside one plain EVALSHA each over redis-rs' connection to a Cluster.

use deadpool_redis::redis::cluster::ClusterClientBuilder;
use deadpool_redis::redis::cluster_async::ClusterConnection;
use deadpool_redis::redis::{Script, cmd};
use tower_distributed::{Quota, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::{Better, Versus};
use crate::common::stats::median;
use crate::drive::per_second;
use support::cluster::RedisCluster;

const MANY: &str = "cluster-many-keys-vs-one-evalsha";
const HOT: &str = "cluster-hot-key-vs-one-evalsha";
const CALLERS: u64 = 256;
const KEYS: u64 = 100_000;

/// What users write by hand: a GCRA of one key.
const BY_HAND: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + tonumber(ARGV[1])
if tat - tonumber(ARGV[2]) > now then return 0 end
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', math.ceil((tat - now) / 1000))
return 1";

pub fn run(bench: &Bench) {
    if !bench.settings.wants(MANY) && !bench.settings.wants(HOT) {
        return;
    }
    let cluster = bench.runtime.block_on(RedisCluster::start());
    let store = Store::builder().cluster(cluster.urls()).unwrap();
    let bucket = TokenBucket::new(
        &store,
        "bench",
        Quota::per_second(1_000_000).burst(1_000_000),
    )
    .unwrap();
    let connection = bench.runtime.block_on(async {
        let client = ClusterClientBuilder::new(cluster.urls()).build().unwrap();
        let connection = client.get_async_connection().await.unwrap();
        for node in cluster.nodes() {
            node.cli(&["SCRIPT", "LOAD", BY_HAND]);
        }
        connection
    });
    for (name, keys) in [(MANY, KEYS), (HOT, 1)] {
        if !bench.settings.wants(name) {
            continue;
        }
        let round = |_| {
            let (ours, by_hand) = (bucket.clone(), ByHand::new(&connection));
            let ours = per_second(
                &bench.runtime,
                CALLERS,
                bench.settings.length,
                move |request| {
                    let bucket = ours.clone();
                    async move {
                        assert!(
                            bucket
                                .allow(spread(request, keys))
                                .await
                                .unwrap()
                                .is_admitted()
                        )
                    }
                },
            );
            let by_hand = per_second(
                &bench.runtime,
                CALLERS,
                bench.settings.length,
                move |request| {
                    let mut by_hand = by_hand.clone();
                    async move { assert!(by_hand.allow(spread(request, keys)).await) }
                },
            );
            eprintln!("{name}: {ours:.0}/s, by hand {by_hand:.0}/s");
            (ours, by_hand)
        };
        let rounds: Vec<_> = (0..bench.settings.rounds).map(round).collect();
        Versus {
            name,
            measures: &format!("decisions/s on 3 masters, {keys} keys, {CALLERS} callers"),
            ours: median(rounds.iter().map(|round| round.0)),
            peer: "one EVALSHA each, redis-rs",
            theirs: median(rounds.iter().map(|round| round.1)),
            ratio: median(rounds.iter().map(|(ours, by_hand)| ours / by_hand)),
            better: Better::Higher,
        }
        .tell();
    }
}

/// A key, in no order.
fn spread(request: u64, keys: u64) -> u64 {
    request.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys
}

#[derive(Clone)]
struct ByHand {
    connection: ClusterConnection,
    sha: String,
}

impl ByHand {
    fn new(connection: &ClusterConnection) -> Self {
        Self {
            connection: connection.clone(),
            sha: Script::new(BY_HAND).get_hash().to_owned(),
        }
    }

    async fn allow(&mut self, key: u64) -> bool {
        let mut call = cmd("EVALSHA");
        call.arg(&self.sha)
            .arg(1)
            .arg(format!("hand:{{{key}}}"))
            .arg(1)
            .arg(1_000_000);
        call.query_async(&mut self.connection).await.unwrap()
    }
}
