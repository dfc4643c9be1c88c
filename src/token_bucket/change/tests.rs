use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::store::{Cell as _, Operation as _};
use crate::token_bucket::agreement::seed;
use crate::token_bucket::operations::Reserve;
use crate::token_bucket::peek::Peek;
use crate::token_bucket::quota::MAX_SPAN;
use crate::token_bucket::state::{Ask, Bucket};
use crate::{Quota, Quotas};

const START: i64 = 1_760_000_000_000_000;

fn quotas(rng: &mut StdRng) -> Quotas {
    let quota = |rng: &mut StdRng| {
        let period = *[1_000_000, 60_000_000, 3_600_000_000].choose(rng).unwrap();
        let period = std::time::Duration::from_micros(period);
        Quota::new(rng.random_range(1..50), period).burst(rng.random_range(1..20))
    };
    Quotas::new((0..rng.random_range(1..=3)).map(|_| quota(rng))).unwrap()
}

/// Applies an operation as the store does.
fn reserve(bucket: &mut Bucket, quotas: &Quotas, now: i64, cost: i64) -> bool {
    if bucket.is_idle(now) {
        *bucket = Bucket::default();
    }
    Reserve { quotas: quotas.clone(), ask: Ask { cost, wait: 0 } }.apply(bucket, now).is_admitted()
}

/// Requests under a quota keep to it in every interval, regardless of the quotas of other requests.
#[test]
fn each_quota_holds_for_the_requests_that_come_under_it() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..2_000 {
        let sets: Vec<Quotas> = (0..rng.random_range(2..=4)).map(|_| quotas(&mut rng)).collect();
        let (mut bucket, mut now) = (Bucket::default(), START);
        // Per set: when requests were admitted, and with how many tokens.
        let mut admitted = vec![Vec::new(); sets.len()];
        for _ in 0..60 {
            now += *[0, 0, 1_000, 90_000, 1_000_000, 60_000_000].choose(&mut rng).unwrap();
            let set = rng.random_range(0..sets.len());
            let cost = rng.random_range(1..=i64::from(sets[set].max_cost()).min(3));
            if reserve(&mut bucket, &sets[set], now, cost) {
                admitted[set].push((now, cost));
            }
        }
        for (quotas, admitted) in sets.iter().zip(&admitted) {
            for (first, (from, _)) in admitted.iter().enumerate() {
                let mut sum = 0;
                for (to, cost) in &admitted[first..] {
                    sum += cost;
                    for limit in quotas.limits() {
                        let most = limit.burst + (to - from) * limit.den / limit.num;
                        assert!(sum <= most, "{sum} > {most} of {limit:?} in {} µs of {sets:?}", to - from);
                    }
                }
            }
        }
    }
}

/// A request that would be admitted under the old quotas at some time is admitted under higher rates by then.
#[test]
fn a_higher_rate_makes_nobody_wait_longer() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..5_000 {
        let (mut bucket, mut now) = (Bucket::default(), START);
        let old = quotas(&mut rng);
        for _ in 0..rng.random_range(1..20) {
            now += *[0, 0, 1_000, 90_000, 1_000_000].choose(&mut rng).unwrap();
            let ask = Ask {
                cost: rng.random_range(1..=i64::from(old.max_cost())),
                wait: *[0, MAX_SPAN].choose(&mut rng).unwrap(),
            };
            Reserve { quotas: old.clone(), ask }.apply(&mut bucket, now);
        }
        let times = rng.random_range(1..=5_i64);
        let raised = old.limits().iter().map(|limit| {
            let rate = (limit.den * times) as f64 / (limit.num as f64 / 1e6);
            Quota::per_second_f64(rate).burst(rng.random_range(1..=40)).named(&*limit.name)
        });
        let raised = Quotas::new(raised).unwrap();
        let cost = rng.random_range(1..=old.max_cost().min(raised.max_cost()));
        let peek = |quotas: &Quotas| Peek.apply(&mut bucket.clone(), now).under(quotas).available_after(cost);
        let (before, after) = (peek(&old).unwrap(), peek(&raised).unwrap());
        // A floating-point rate is exact to the microsecond.
        let rounding = std::time::Duration::from_micros(2);
        assert!(
            after <= before + rounding,
            "{after:?} instead of {before:?} for {cost}: {old:?}, {raised:?}, {bucket:?}"
        );
    }
}

#[test]
fn a_bucket_keeps_a_bounded_number_of_levels() {
    let (mut bucket, mut rng) = (Bucket::default(), StdRng::seed_from_u64(seed()));
    for rate in 1..=100 {
        let quotas = Quotas::new([Quota::per_hour(rate), Quota::per_day(rate)]).unwrap();
        let cost = rng.random_range(1..=i64::from(rate));
        Reserve { quotas, ask: Ask { cost, wait: MAX_SPAN } }.apply(&mut bucket, START);
        assert!(bucket.levels.len() <= 16, "{}", bucket.levels.len());
    }
}
