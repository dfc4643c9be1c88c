use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::bucket::calendar::{Calendar, MAX_SPAN};
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::START;
use crate::store::memory::manual_clock::ManualClock;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::acquire::Reservation;
use support::seed;

const DAY: i64 = 86_400_000_000;

fn quotas(rng: &mut StdRng, tokens: u32) -> Quotas {
    let ahead = rng.random();
    let day = Quota::per_calendar_day(tokens)
        .at_offset(rng.random_range(-1439..=1439))
        .reserve_ahead(ahead);
    let week = Quota::per_calendar_week(tokens + 3)
        .starting(4)
        .reserve_ahead(ahead);
    let slow = Quota::new(1, Duration::from_secs(5 * 3600)).burst(tokens.min(3));
    let sets: [&[Quota]; 4] = [
        std::slice::from_ref(&day),
        &[slow.clone(), day.clone()],
        &[week.clone(), day.clone()],
        &[slow.named("slow"), week.named("week"), day.clone()],
    ];
    Quotas::new(sets.choose(rng).unwrap().iter().cloned()).unwrap()
}

/// Whatever waits, is cancelled or blocked: requests worth at most the quota act in a window.
#[tokio::test]
async fn no_window_sees_more_than_its_tokens() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let clock = ManualClock::at(START);
    let store = clock.store();
    let mut later = 0;
    for sequence in 0..3_000 {
        let most = rng.random_range(1..=10);
        let quotas = quotas(&mut rng, most);
        let bucket = TokenBucket::new(&store, "windows", quotas.clone()).unwrap();
        let (mut now, mut acts) = (START, Vec::new());
        let mut pending: Vec<(i64, i64, Reservation)> = Vec::new();
        for _ in 0..40 {
            now += *[0, 0, 1, 3_600_000_000, 5 * 3_600_000_000, DAY / 2, DAY]
                .choose(&mut rng)
                .unwrap();
            clock.set(now);
            match rng.random_range(0..10) {
                0 if !pending.is_empty() => {
                    let index = rng.random_range(0..pending.len());
                    let (act, cost, mut reservation) = pending.swap_remove(index);
                    if act <= now {
                        acts.push((act, cost));
                        continue;
                    }
                    reservation.cancel().await.unwrap();
                }
                1 => {
                    let span = rng.random_range(0..2 * DAY).unsigned_abs();
                    bucket
                        .block_for(sequence, Duration::from_micros(span))
                        .await
                        .unwrap();
                }
                _ => {
                    let cost = rng.random_range(1..=quotas.max_cost());
                    let wait = *[0, DAY / 4, DAY, 3 * DAY, MAX_SPAN]
                        .choose(&mut rng)
                        .unwrap();
                    let bucket = bucket.with_max_wait(Duration::from_micros(wait.unsigned_abs()));
                    let Ok(reservation) = bucket.reserve_n(sequence, cost).await else {
                        continue;
                    };
                    let act = now + i64::try_from(reservation.delay().as_micros()).unwrap();
                    assert!(act <= now + wait, "SEED={seed}");
                    pending.push((act, cost.into(), reservation));
                }
            }
        }
        acts.extend(pending.into_iter().map(|(act, cost, _)| (act, cost)));
        for limit in quotas.limits() {
            let Some(calendar) = Calendar::of(limit) else {
                continue;
            };
            let mut windows: BTreeMap<i64, i64> = BTreeMap::new();
            for (act, cost) in &acts {
                *windows.entry(calendar.window(*act)).or_default() += cost;
            }
            assert!(
                windows.values().all(|sum| *sum <= limit.burst),
                "SEED={seed}, {quotas}: {windows:?}"
            );
            later += windows.len();
        }
    }
    assert!(later > 10_000, "{later}");
}

/// A clock that steps over the end of a window and back, as often as it likes, gives the tokens of each window once.
#[tokio::test]
async fn each_window_gives_its_tokens_once_whatever_the_clock_does() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let clock = ManualClock::at(START);
    let store = clock.store();
    let border = (START / DAY + 1) * DAY;
    for sequence in 0..2_000 {
        let most = rng.random_range(1..=10);
        let quotas = [
            Quota::per_calendar_day(most),
            Quota::per_second(1000).burst(most),
        ];
        let quotas = &quotas[..rng.random_range(1..=2)];
        let quotas = Quotas::new(quotas.iter().cloned()).unwrap();
        let bucket = TokenBucket::new(&store, "steps", quotas).unwrap();
        let mut admitted: BTreeMap<i64, u32> = BTreeMap::new();
        for _ in 0..40 {
            let step = rng.random_range(-DAY / 2..DAY / 2);
            clock.set(border + *[step, step / 1_000_000].choose(&mut rng).unwrap());
            let cost = rng.random_range(1..=most);
            let decision = bucket.allow_n(sequence, cost).await.unwrap();
            if decision.is_admitted() {
                *admitted
                    .entry(decision.state.bucket.levels[0].last.whole)
                    .or_default() += cost;
            }
            bucket.peek(sequence).await.unwrap();
        }
        assert!(admitted.len() <= 2, "SEED={seed}: {admitted:?}");
        assert!(
            admitted.values().all(|sum| *sum <= most),
            "SEED={seed}, {most}: {admitted:?}"
        );
    }
}
