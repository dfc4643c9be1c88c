//! What an authorization and its capture cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tower_distributed::{Quota, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::{Better, Versus, figure};
use crate::common::server::spent;
use crate::common::stats::median;

/// The pairs of a round, one after the other.
const PAIRS: u32 = 2_000;
const CALLERS: usize = 256;

pub fn run(bench: &Bench) {
    let store = Store::builder().redis(&bench.server.url).unwrap();
    let bucket = TokenBucket::new(&store, "tokens", Quota::per_second(4_000_000_000)).unwrap();
    let name = "authorize-capture-script-us-vs-bucket";
    if bench.settings.wants(name) {
        let lone = |pair: &dyn Fn()| {
            let mut connection = bench.server.connection();
            let before = spent(&mut connection);
            (0..PAIRS).for_each(|_| pair());
            (spent(&mut connection) - before) / f64::from(PAIRS)
        };
        let captures = || {
            let hold = bench
                .runtime
                .block_on(bucket.authorize("lone", 10))
                .unwrap();
            bench.runtime.block_on(hold.capture(7)).unwrap();
        };
        let decisions = || {
            for _ in 0..2 {
                assert!(
                    bench
                        .runtime
                        .block_on(bucket.allow_n("bare", 10))
                        .unwrap()
                        .is_admitted()
                );
            }
        };
        // The shortest round counts: other programs only add to it.
        let (mut ours, mut theirs) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..bench.settings.rounds {
            (ours, theirs) = (ours.min(lone(&captures)), theirs.min(lone(&decisions)));
        }
        let (peer, measures) = ("two decisions", "server's µs of a pair of calls");
        Versus {
            name,
            measures,
            ours,
            peer,
            theirs,
            ratio: ours / theirs,
            better: Better::Lower,
        }
        .tell();
    }
    let name = "authorize-hot-key";
    if bench.settings.wants(name) {
        let rounds =
            (0..bench.settings.rounds).map(|_| bench.runtime.block_on(hot_key(bench, &bucket)));
        figure(
            name,
            "authorizations and captures (pairs) per second, one key, 256 callers",
            median(rounds.collect::<Vec<_>>()),
        );
    }
}

async fn hot_key(bench: &Bench, bucket: &TokenBucket) -> f64 {
    let (pairs, end) = (
        Arc::new(AtomicU64::new(0)),
        Instant::now() + bench.settings.length,
    );
    let callers = (0..CALLERS).map(|_| {
        let (bucket, pairs) = (bucket.clone(), Arc::clone(&pairs));
        tokio::spawn(async move {
            while Instant::now() < end {
                bucket
                    .authorize("hot", 10)
                    .await
                    .unwrap()
                    .capture(7)
                    .await
                    .unwrap();
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    futures::future::join_all(callers)
        .await
        .into_iter()
        .for_each(Result::unwrap);
    pairs.load(Ordering::Relaxed) as f64 / bench.settings.length.as_secs_f64()
}
