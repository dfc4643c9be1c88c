//! What the crate adds to one call when nobody else calls.

use std::time::{Duration, Instant};

use tower_distributed::{Quota, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::{Better, Versus};
use crate::common::stats::{median, percentile};
use crate::contestants::{Bare, connect, ours, recorded};

const NAME: &str = "single-caller-p50-vs-bare-evalsha";
const KEY: &str = "key-0000000000000001";
/// What the crate calls the key in Redis.
const REDIS_KEY: &str = "td:{bench:key-0000000000000001}:tat";
/// A token every microsecond: everything is admitted.
const RATE: u32 = 1_000_000;
/// Calls of one, then of the other: short enough that both see the same weather.
const SLICE: usize = 200;

struct Round {
    ours: f64,
    bare: f64,
}

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    bench.server.empty();
    let store = Store::redis(&bench.server.url).unwrap();
    let quota = Quota::per_second(RATE);
    let call = recorded(bench, &ours::bucket(&store, quota.clone()));
    let mut bare = Bare::new(bench.runtime.block_on(connect(&bench.server.url)), call);
    let ours = TokenBucket::new(&store, "bench", quota).unwrap();
    bench.runtime.block_on(async {
        assert!(ours.allow(KEY).await.unwrap().is_admitted());
        assert!(bare.allow(REDIS_KEY).await);
    });

    let rounds: Vec<Round> = (0..bench.settings.rounds)
        .map(|_| {
            let task = round(ours.clone(), bare.clone(), bench.settings.length);
            bench.runtime.block_on(bench.runtime.spawn(task)).unwrap()
        })
        .collect();
    let of = |read: fn(&Round) -> f64| median(rounds.iter().map(read)) / 1000.0;
    Versus {
        name: NAME,
        measures: "p50 of a decision, µs, one caller",
        ours: of(|round| round.ours),
        peer: "our script, one EVALSHA each",
        theirs: of(|round| round.bare),
        ratio: median(rounds.iter().map(|round| round.ours / round.bare)),
        better: Better::Lower,
    }
    .tell();
}

async fn round(ours: TokenBucket, mut bare: Bare, length: Duration) -> Round {
    let (mut our_times, mut bare_times) = (Vec::new(), Vec::new());
    let end = Instant::now() + length;
    while Instant::now() < end {
        for _ in 0..SLICE {
            let since = Instant::now();
            ours.allow(KEY).await.unwrap();
            our_times.push(since.elapsed().as_nanos() as u32);
        }
        for _ in 0..SLICE {
            let since = Instant::now();
            bare.allow(REDIS_KEY).await;
            bare_times.push(since.elapsed().as_nanos() as u32);
        }
    }
    our_times.sort_unstable();
    bare_times.sort_unstable();
    Round {
        ours: percentile(&our_times, 0.5),
        bare: percentile(&bare_times, 0.5),
    }
}
