//! Compares a bucket to the simplest model of GCRA: the theoretical arrival time and the interval between two
//! tokens are rational numbers. The model has no µs, no parts and no levels.

use std::time::Duration;

use num_rational::Ratio;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::bucket::calendar::MAX_SPAN;
use crate::bucket::quota::Quota;
use crate::bucket::tests::agreement::virtual_time::World;
use crate::bucket::tests::fixtures::START;
use crate::token_bucket::TokenBucket;
use support::seed;

type Rational = Ratio<i128>;

/// Times are in µs.
struct Model {
    interval: Rational,
    burst: Rational,
    tat: Rational,
    blocked_until: Rational,
    /// When the state was written, if it owed more than the burst then.
    seen: Option<i64>,
}

fn whole(number: i64) -> Rational {
    Rational::from_integer(number.into())
}

/// Converts to whole µs, rounded up.
fn micros(span: Rational) -> i64 {
    span.ceil().to_integer().try_into().unwrap()
}

impl Model {
    fn new(period: Duration, rate: u32, burst: u32) -> Self {
        let interval = Rational::new(period.as_micros() as i128, rate.into());
        Self {
            interval,
            burst: whole(burst.into()),
            tat: whole(0),
            blocked_until: whole(0),
            seen: None,
        }
    }

    /// The time at which a request acts, if it is charged.
    fn act(&self, now: Rational, cost: Rational) -> Rational {
        let start = self.blocked_until.max(now);
        start.max(self.tat.max(start) + (cost - self.burst) * self.interval)
    }

    /// Bounds the state if the clock was set back.
    fn set_back(&mut self, now: i64) {
        match self.seen {
            Some(seen) if seen > now => {
                for time in [&mut self.tat, &mut self.blocked_until] {
                    *time = (*time).min((*time - whole(seen - now)).max(whole(now)));
                }
                self.seen = Some(now);
            }
            Some(_) => {}
            None => self.tat = self.tat.min(whole(now) + self.burst * self.interval),
        }
    }

    fn written(&mut self, now: i64) {
        let most = whole(now) + self.burst * self.interval;
        self.seen = (self.tat > most || self.blocked_until > whole(now)).then_some(now);
        if self.blocked_until <= whole(now) {
            self.blocked_until = whole(0);
        }
    }

    /// Charges a request. Returns the time at which it acts; `None` if it is refused.
    fn take(&mut self, now: i64, cost: u32, wait: i64) -> Option<Rational> {
        let (at, now, cost) = (now, whole(now), whole(cost.into()));
        let act = self.act(now, cost);
        if act > now + whole(wait) {
            return None;
        }
        self.tat = self.tat.max(self.blocked_until.max(now)) + cost * self.interval;
        self.written(at);
        Some(act)
    }

    fn remaining(&self, now: i64) -> i64 {
        if self.blocked_until > whole(now) {
            return 0;
        }
        let tokens = self.burst - (self.tat - whole(now)).max(whole(0)) / self.interval;
        i64::try_from(tokens.floor().to_integer()).unwrap().max(0)
    }
}

/// The result of a request, in both models.
#[derive(Debug, PartialEq)]
struct Said {
    admitted: bool,
    delay: i64,
    retry_after: Option<i64>,
    remaining: i64,
    reset_after: i64,
}

#[tokio::test]
async fn a_bucket_in_memory_is_gcra_in_rational_numbers() {
    is_gcra(&mut World::in_memory(START), 4_000).await;
}

#[tokio::test]
async fn a_bucket_in_redis_is_gcra_in_rational_numbers() {
    let mut world = World::on_redis(START).await;
    is_gcra(&mut world, 200).await;
    world.server.unwrap().assert_both_ways_to_call();
}

async fn is_gcra(world: &mut World, sequences: usize) {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut admitted = 0;
    for sequence in 0..sequences {
        // Only rates with an interval that is stored exactly: up to 2^20 parts of a µs.
        let rate = *[1, 3, 7, 10, 31, 97, 1000, 999_983, 4_000_000]
            .choose(&mut rng)
            .unwrap();
        let period = Duration::from_secs(*[1, 7, 60, 3600, 86_400].choose(&mut rng).unwrap());
        let burst = *[1, 2, 5, 14, 60, 1000].choose(&mut rng).unwrap();
        let bucket = TokenBucket::new(
            &world.store,
            "rational",
            Quota::new(rate, period).burst(burst),
        )
        .unwrap();
        let mut model = Model::new(period, rate, burst);
        let mut now = START;
        let mut log = Vec::new();
        for _ in 0..30 {
            let interval = micros(model.interval);
            let jumps = [
                0,
                0,
                1,
                interval - 1,
                interval,
                interval + 1,
                3 * interval,
                -1,
                -interval,
                -7_200_000_000,
            ];
            let jump = jumps.choose(&mut rng).unwrap();
            // The store may drop a full bucket, so the clock is not set back while the bucket is full.
            let is_full = model.tat.max(model.blocked_until) <= whole(now);
            now += if is_full { jump.abs() } else { *jump };
            world.set(now);
            if model.tat.max(model.blocked_until) <= whole(now) {
                (model.tat, model.blocked_until, model.seen) = (whole(0), whole(0), None);
            }
            model.set_back(now);
            if rng.random_bool(0.03) {
                let span = rng.random_range(1..=2 * interval);
                bucket
                    .block_for(sequence, Duration::from_micros(span.unsigned_abs()))
                    .await
                    .unwrap();
                model.blocked_until = model.blocked_until.max(whole(now + span));
                model.written(now);
                log.push(format!("{now} block {span}"));
            }
            let cost = rng.random_range(1..=burst.min(7));
            let wait = *[0, 0, 1, interval, 5 * interval, MAX_SPAN]
                .choose(&mut rng)
                .unwrap();
            log.push(format!("{now} cost {cost} wait {wait}"));
            let act = model.take(now, cost, wait);
            let decision = bucket.decide(sequence.into(), cost, wait).await.unwrap();
            let span = |span: Duration| i64::try_from(span.as_micros()).unwrap();
            let ours = Said {
                admitted: decision.is_admitted(),
                delay: span(decision.delay()),
                retry_after: decision.retry_after().map(span),
                remaining: decision.remaining().into(),
                reset_after: span(decision.state.reset_after().unwrap()),
            };
            let full = model.tat.max(model.blocked_until).max(whole(now));
            let again = model.act(whole(now), whole(cost.into()));
            let theirs = Said {
                admitted: act.is_some(),
                delay: act.map_or(0, |act| micros(act) - now),
                retry_after: act.is_none().then(|| micros(again) - now),
                remaining: model.remaining(now),
                reset_after: micros(full) - now,
            };
            assert_eq!(
                ours, theirs,
                "SEED={seed}, {rate} in {period:?}, burst {burst}: {log:#?}"
            );
            admitted += usize::from(act.is_some());
        }
    }
    assert!(admitted > sequences, "{admitted}");
}
