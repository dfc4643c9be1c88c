//! 64 streams whose usage is known only at their end: a minute, ten times as fast.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, sleep};
use tower_distributed::{Quota, Store, TokenBucket};

use crate::common::Bench;
use crate::common::report::{figure, note};
use crate::common::stats::median;

const STREAMS: u64 = 64;
const ESTIMATE: u32 = 1000;
const BURST: u32 = 20_000;
const RATE: u32 = 10 * BURST;
const LENGTH: Duration = Duration::from_secs(6);

/// How a stream pays for its usage.
#[derive(Clone, Copy)]
enum Pays {
    /// Its estimate is held, and its usage captured.
    Captures,
    /// Its estimate, in advance.
    Estimate,
    /// One token in advance, and its usage at the end.
    Afterwards,
}

/// What the streams of a round used, and when.
struct Used {
    /// What was paid of what the quota allows.
    paid: f64,
    /// Of what the quota allows in some interval, how much more was used in it.
    overrun: f64,
}

pub fn run(bench: &Bench) {
    let names = ["budget-utilisation", "budget-vs-charge-after-overrun"];
    if !names.iter().any(|name| bench.settings.wants(name)) {
        return;
    }
    let rounds = |pays| -> Vec<Used> {
        (0..bench.settings.rounds as u64)
            .map(|seed| streams(bench, pays, seed))
            .collect()
    };
    let of = |used: &[Used], read: fn(&Used) -> f64| median(used.iter().map(read));
    let [captures, estimate, afterwards] =
        [Pays::Captures, Pays::Estimate, Pays::Afterwards].map(rounds);
    let measures = "used ÷ allowed";
    figure(names[0], measures, of(&captures, |used| used.paid));
    figure(
        "budget-utilisation-by-estimates",
        "the same, charging the estimate",
        of(&estimate, |used| used.paid),
    );
    let measures = "used above burst + rate·t in an interval, ÷ burst";
    figure(
        "budget-overrun-of-captures",
        measures,
        of(&captures, |used| used.overrun),
    );
    figure(names[1], measures, of(&afterwards, |used| used.overrun));
    note(
        "64 streams of 10 to 50 ms that use 0 to 1 000 tokens, of 200 000/s and a burst of 20 000, for 6 s. A stream that is refused comes back when it is told.",
    );
}

fn streams(bench: &Bench, pays: Pays, seed: u64) -> Used {
    bench.runtime.block_on(async {
        let quota = Quota::per_second(RATE).burst(BURST);
        let bucket = TokenBucket::new(&Store::in_memory(), "tokens", quota).unwrap();
        let (used, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let stream = |nth| {
            let (bucket, used) = (bucket.clone(), Arc::clone(&used));
            let mut random = StdRng::seed_from_u64(seed * STREAMS + nth);
            async move {
                while began.elapsed() < LENGTH {
                    let (tokens, span) = (
                        random.random_range(0..=ESTIMATE),
                        random.random_range(10..=50),
                    );
                    let work = sleep(Duration::from_millis(span));
                    let again = match pays {
                        Pays::Captures => match bucket.authorize("all", ESTIMATE).await {
                            Ok(hold) => {
                                work.await;
                                hold.capture(tokens).await.unwrap();
                                None
                            }
                            Err(error) => error.decision().unwrap().retry_after(),
                        },
                        Pays::Estimate | Pays::Afterwards => {
                            let cost = if matches!(pays, Pays::Estimate) {
                                ESTIMATE
                            } else {
                                1
                            };
                            let decision = bucket.allow_n("all", cost).await.unwrap();
                            if decision.is_admitted() {
                                work.await;
                            }
                            if decision.is_admitted() && matches!(pays, Pays::Afterwards) {
                                bucket
                                    .charge("all", tokens.saturating_sub(1))
                                    .await
                                    .unwrap();
                            }
                            decision.retry_after()
                        }
                    };
                    match again {
                        Some(after) => sleep(after).await,
                        None => used
                            .lock()
                            .unwrap()
                            .push((began.elapsed().as_secs_f64(), f64::from(tokens))),
                    }
                }
            }
        };
        futures::future::join_all((0..STREAMS).map(stream)).await;
        let used = std::mem::take(&mut *used.lock().unwrap());
        Used {
            paid: paid(&used),
            overrun: overrun(&used),
        }
    })
}

fn paid(used: &[(f64, f64)]) -> f64 {
    let length = LENGTH.as_secs_f64();
    let sum: f64 = used
        .iter()
        .filter(|(at, _)| *at <= length)
        .map(|(_, tokens)| tokens)
        .sum();
    sum / (f64::from(BURST) + f64::from(RATE) * length)
}

/// The level of a bucket that all were charged to when they ended: how far it came below empty, in bursts.
fn overrun(used: &[(f64, f64)]) -> f64 {
    let (burst, rate) = (f64::from(BURST), f64::from(RATE));
    let (mut level, mut last, mut lowest) = (burst, 0.0, 0.0_f64);
    for (at, tokens) in used {
        level = (level + rate * (at - last)).min(burst) - tokens;
        (last, lowest) = (*at, lowest.min(level));
    }
    // The clock of a store counts microseconds.
    if -lowest < 1.0 { 0.0 } else { -lowest / burst }
}
