//! The Lua scripts and the Rust code must give the same answers to every sequence of operations.
//!
//! Random sequences run on a real Redis, whose scripts use a clock that the test sets, and in memory, with the same
//! clock, which is set back at times. Keys expire by that clock, and each expiry is checked when it is written. Many
//! sequences run concurrently, so that their operations share calls, as runs.

mod calendar;
mod exact;
mod hold_all;
mod holds;
mod learned;
mod rational;
mod runs;
mod set_back;
mod several;
mod virtual_time;
mod windows;

use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use self::virtual_time::{VirtualTime, jump};
use super::cancel::{Cancel, Rule};
use super::{Reservation, TokenBucket};
use crate::store::ManualClock;
use crate::{Error, Key, Quota, Quotas, Store};
use support::redis_server::RedisServer;

const SEQUENCES: usize = 5_000;
const IN_STEP: usize = 250;
const STEPS: usize = 16;

/// One of the two stores, with the state of the sequences on it.
struct Side {
    bucket: TokenBucket,
    /// Per sequence: the reservations that can be cancelled.
    reservations: Vec<Vec<Reservation>>,
}

#[derive(Clone, Debug)]
enum Step {
    /// Several equal requests at once.
    Reserve {
        quotas: usize,
        cost: u32,
        wait: i64,
        count: usize,
    },
    Cancel {
        pick: usize,
    },
    /// Gives tokens back as if the caller were gone.
    Undo {
        pick: usize,
    },
    /// Several reads at once.
    Peek {
        quotas: usize,
        count: usize,
    },
    /// Several blocks with these durations at once.
    Block {
        micros: Vec<u64>,
    },
    Reset,
}

fn quota_sets() -> Vec<Quotas> {
    // Midnight at this offset from UTC comes 40 s after the time at which the sequences begin, a Thursday.
    const OFFSET: i16 = -(8 * 60 + 54);
    let sets: [&[Quota]; 14] = [
        &[Quota::per_second(10).burst(5)],
        &[Quota::per_second(7).burst(3)],
        &[Quota::per_second(7).burst(9).named("a"), Quota::per_second(7).burst(3).named("b")],
        &[Quota::per_second(3_000_000).burst(4_000_000)],
        &[Quota::per_second(10).burst(10), Quota::per_minute(31).burst(7)],
        &[Quota::non_refilling(12)],
        &[Quota::per_hour(1000).burst(4), Quota::non_refilling(40), Quota::per_second(999_983).burst(100)],
        &[Quota::new(1, std::time::Duration::from_secs(86_400 * 365))],
        &[Quota::new(u32::MAX, std::time::Duration::from_secs(7))],
        // The time of the burst is more than 2^53 parts of a µs.
        &[Quota::new(999_983, std::time::Duration::from_secs(3600)).burst(4_000_000)],
        &[Quota::per_calendar_day(9).at_offset(OFFSET)],
        &[Quota::per_calendar_day(7).at_offset(OFFSET).reserve_ahead(true)],
        &[Quota::per_second(10).burst(4), Quota::per_calendar_week(20).starting(4).at_offset(OFFSET)],
        &[
            Quota::per_calendar_month(30).starting(9).at_offset(OFFSET).named("m"),
            Quota::per_calendar_year(90),
        ],
    ];
    sets.iter().map(|set| Quotas::new(set.iter().cloned()).unwrap()).collect()
}

fn random_step(rng: &mut StdRng, sets: &[Quotas], usual: usize) -> Step {
    // Usually one set of quotas per key; sometimes another, as during a deployment.
    let quotas = if rng.random_bool(0.15) { rng.random_range(0..sets.len()) } else { usual };
    match rng.random_range(0..100) {
        0..60 => {
            let most = sets[quotas].max_cost();
            let cost = match rng.random_range(0..4) {
                0 => rng.random_range(0..=most),
                1 => most,
                _ => rng.random_range(0..=most.min(3)),
            };
            let waits = [0, 0, 1, 1_000, 100_000, 1_500_000, 3_600_000_000, super::quota::MAX_SPAN];
            let wait = waits[rng.random_range(0..waits.len())];
            Step::Reserve { quotas, cost, wait, count: rng.random_range(1..=4) }
        }
        60..80 => Step::Cancel { pick: rng.random_range(0..8) },
        80..86 => Step::Undo { pick: rng.random_range(0..8) },
        86..93 => Step::Peek { quotas, count: rng.random_range(1..=4) },
        93..98 => {
            let micros = rng.random_range(0..3_000_000);
            Step::Block { micros: [micros, micros, 1_000_000][..rng.random_range(1..=3)].to_vec() }
        }
        _ => Step::Reset,
    }
}

impl Side {
    fn new(store: &Store, sets: &[Quotas]) -> Self {
        let bucket = TokenBucket::new(store, "agreement", sets[0].clone()).unwrap();
        Self { bucket, reservations: (0..IN_STEP).map(|_| Vec::new()).collect() }
    }

    /// Finds what is idle, before the clock is set back.
    async fn touch(&self, first: usize) {
        let keys = (first..first + IN_STEP).map(|sequence| Key::from(format!("sequence {sequence}")));
        join_all(keys.map(|key| self.bucket.peek(key))).await;
    }

    /// Runs the steps of one round. Returns the answers as text.
    async fn round(&mut self, first: usize, sets: &[Quotas], steps: &[Step]) -> Vec<String> {
        let bucket = &self.bucket;
        join_all(self.reservations.iter_mut().enumerate().zip(steps).map(
            async |((sequence, reservations), step)| {
                let key = Key::from(format!("sequence {}", first + sequence));
                answer(bucket, key, reservations, sets, step).await.unwrap()
            },
        ))
        .await
    }
}

async fn answer(
    bucket: &TokenBucket,
    key: Key,
    reservations: &mut Vec<Reservation>,
    sets: &[Quotas],
    step: &Step,
) -> Result<String, Error> {
    Ok(match step.clone() {
        Step::Reserve { quotas, cost, wait, count } => {
            let bucket = bucket.with_quotas(&sets[quotas]);
            let decisions = join_all((0..count).map(|_| bucket.decide(key.clone(), cost, wait))).await;
            let mut decisions = decisions.into_iter().collect::<Result<Vec<_>, _>>()?;
            // The decisions are equal, but two calls may have overtaken each other.
            decisions.sort_by_key(|decision| (!decision.is_admitted(), decision.state.bucket.levels.clone()));
            let text = format!("{decisions:?}");
            let admitted = decisions.into_iter().filter(|decision| decision.is_admitted());
            reservations.extend(admitted.map(|it| Reservation::new(bucket.clone(), key.clone(), it)));
            text
        }
        Step::Cancel { pick } | Step::Undo { pick } => {
            if reservations.is_empty() {
                return Ok(String::new());
            }
            let mut reservation = reservations.remove(pick % reservations.len());
            let given = match step {
                Step::Cancel { .. } => {
                    let cancel = reservation.take_cancel(0);
                    cancel.map(|cancel| reservation.bucket.cancel(&reservation.key, cancel))
                }
                _ => {
                    let decision = reservation.decision();
                    let undo = Cancel::new(&decision.state, decision.cost.into(), Rule::IfLatest);
                    Some(bucket.clients.cancel.run(key, undo))
                }
            };
            match given {
                Some(given) => format!("given: {:?}", given.await?),
                None => String::new(),
            }
        }
        Step::Peek { quotas, count } => {
            let bucket = bucket.with_quotas(&sets[quotas]);
            let states = join_all((0..count).map(|_| bucket.peek(key.clone()))).await;
            format!("{:?}", states.into_iter().collect::<Result<Vec<_>, _>>()?)
        }
        Step::Block { micros } => {
            let blocks =
                micros.iter().map(|&micros| bucket.block_for(key.clone(), Duration::from_micros(micros)));
            let blocked = join_all(blocks).await;
            blocked.into_iter().collect::<Result<Vec<_>, _>>().map(|_| String::new())?
        }
        Step::Reset => bucket.reset(key).await.map(|()| String::new())?,
    })
}

#[tokio::test]
async fn lua_and_rust_agree_on_every_sequence() {
    let server = RedisServer::start().await;
    let mut time = VirtualTime::new(&server);
    let clock = ManualClock::at(0);
    let sets = quota_sets();
    let seed = support::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let on_redis = VirtualTime::store(&server);
    let in_memory = clock.store();

    for batch in 0..SEQUENCES / IN_STEP {
        let usual: Vec<_> = (0..IN_STEP).map(|_| rng.random_range(0..sets.len())).collect();
        let mut sides = [Side::new(&on_redis, &sets), Side::new(&in_memory, &sets)];
        let mut now = 1_760_000_000_000_000_i64;
        let mut history: Vec<(i64, Vec<Step>)> = Vec::new();
        for _ in 0..STEPS {
            let by = jump(&mut rng);
            if by < 0 {
                sides[1].touch(batch * IN_STEP).await;
            }
            now += by;
            clock.set(now);
            time.set(now);
            let steps: Vec<_> = usual.iter().map(|&usual| random_step(&mut rng, &sets, usual)).collect();
            history.push((now, steps.clone()));
            let [lua, rust] = &mut sides;
            let lua = lua.round(batch * IN_STEP, &sets, &steps).await;
            time.check_expiries();
            let rust = rust.round(batch * IN_STEP, &sets, &steps).await;
            for (at, (lua, rust)) in lua.iter().zip(&rust).enumerate() {
                let so_far = || {
                    let steps = history.iter().map(|(now, steps)| format!("{now}: {:?}", steps[at]));
                    steps.collect::<Vec<_>>().join("\n")
                };
                assert_eq!(lua, rust, "SEED={seed}, quotas {:?}\n{}", sets[usual[at]], so_far());
            }
        }
    }
    server.assert_both_ways_to_call();
}
