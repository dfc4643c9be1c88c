use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::bucket::Bucket;
use crate::bucket::calendar::MAX_SPAN;
use crate::bucket::give_back::{GiveBack, Rule};
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::{START, adjust, check_intervals, one, peek, reserve, take};
use crate::store::operation::{Cell as _, Operation as _};
use support::seed;

fn quotas(rng: &mut StdRng) -> Quotas {
    let quota = |rng: &mut StdRng| {
        let period = *[1_000_000, 60_000_000, 3_600_000_000].choose(rng).unwrap();
        let period = std::time::Duration::from_micros(period);
        Quota::new(rng.random_range(1..50), period).burst(rng.random_range(1..20))
    };
    Quotas::new((0..rng.random_range(1..=3)).map(|_| quota(rng))).unwrap()
}

/// Requests under a quota keep to it in every interval, regardless of the quotas of other requests.
#[test]
fn each_quota_holds_for_the_requests_that_come_under_it() {
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..2_000 {
        let sets: Vec<Quotas> = (0..rng.random_range(2..=4))
            .map(|_| quotas(&mut rng))
            .collect();
        let (mut bucket, mut now) = (Bucket::default(), START);
        // Per set: when requests were admitted, and with how many tokens.
        let mut admitted = vec![Vec::new(); sets.len()];
        for _ in 0..60 {
            now += *[0, 0, 1_000, 90_000, 1_000_000, 60_000_000]
                .choose(&mut rng)
                .unwrap();
            let set = rng.random_range(0..sets.len());
            let cost = rng.random_range(1..=i64::from(sets[set].max_cost()).min(3));
            if bucket.is_idle(now) {
                bucket = Bucket::default();
            }
            if take(&mut bucket, &sets[set], now, cost) {
                admitted[set].push((now, cost));
            }
        }
        for (quotas, admitted) in sets.iter().zip(&mut admitted) {
            check_intervals(quotas, admitted, (0, 0), || format!("{sets:?}"));
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
            let cost = rng.random_range(1..=i64::from(old.max_cost()));
            reserve(
                &mut bucket,
                &old,
                now,
                (cost, *[0, MAX_SPAN].choose(&mut rng).unwrap()),
            );
        }
        let times = rng.random_range(1..=5_i64);
        let raised = old.limits().iter().map(|limit| {
            let rate = (limit.den * times) as f64 / (limit.num as f64 / 1e6);
            Quota::per_second_f64(rate)
                .burst(rng.random_range(1..=40))
                .named(&*limit.name)
        });
        let raised = Quotas::new(raised).unwrap();
        let cost = rng.random_range(1..=old.max_cost().min(raised.max_cost()));
        let available = |quotas: &Quotas| peek(&bucket, quotas, now).available_after(cost).unwrap();
        let (before, after) = (available(&old), available(&raised));
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
        reserve(&mut bucket, &quotas, START, (cost, MAX_SPAN));
        assert!(bucket.levels.len() <= 16, "{}", bucket.levels.len());
    }
}

/// The number of missing tokens is kept. If the burst is smaller, the number of tokens left is kept, up to the new
/// burst.
#[test]
fn a_new_quota_takes_over_what_is_missing() {
    let (fast, slow) = (
        || Quota::per_second(10),
        |burst| Quota::per_second(1).burst(burst),
    );
    let seven = || Quota::per_second(7).burst(10);
    let year = std::time::Duration::from_secs(365 * 86_400);
    let (credit, daily) = (Quota::non_refilling, Quota::per_calendar_day);
    // The first quota, charged tokens, and the ms since then; the new quota, the tokens that are left, and the µs until
    // it is full.
    let cases = [
        (fast(), 4, 0, slow(10), 6, Some(4_000_000)),
        (fast(), 4, 50, slow(10), 6, Some(3_500_000)),
        (fast(), 1, 50, slow(10), 9, Some(500_000)),
        (fast(), 1, 100, slow(10), 10, Some(0)),
        (fast(), 4, 0, slow(20), 16, Some(4_000_000)),
        (fast(), 4, 0, slow(3), 3, Some(0)),
        (fast(), 7, 0, slow(3), 3, Some(0)),
        (fast(), 7, 50, slow(3), 3, Some(0)),
        (fast(), 8, 50, slow(3), 2, Some(500_000)),
        (fast(), 9, 50, slow(3), 1, Some(1_500_000)),
        (fast(), 4, 0, seven(), 6, Some(571_429)),
        (fast(), 4, 50, seven(), 6, Some(500_000)),
        (fast(), 20_000, 0, slow(10), 0, Some(10_240_000_000)),
        (fast(), 1000, 0, Quota::new(1, year), 0, Some(MAX_SPAN)),
        (fast(), 4, 0, credit(10), 6, None),
        (fast(), 4, 50, credit(10), 6, None),
        (fast(), 1, 50, credit(10), 9, None),
        (fast(), 4, 0, credit(3), 3, Some(0)),
        (credit(10), 4, 0, slow(10), 6, Some(4_000_000)),
        (daily(10), 4, 0, slow(10), 6, Some(4_000_000)),
        (daily(10), 4, 0, credit(20), 16, None),
    ];
    for (from, tokens, passed, to, remaining, full) in cases {
        let told = format!("{tokens} of {from:?}, after {passed} ms {to:?}");
        let (mut bucket, quotas) = (Bucket::default(), one(from));
        adjust(&mut bucket, &quotas, START, (tokens, 0));
        let state = peek(&bucket, &one(to), START + 1000 * passed);
        let reset = state.reset_after().map(|reset| reset.as_micros() as i64);
        assert_eq!((state.remaining(), reset), (remaining, full), "{told}");
    }
}

/// This includes tokens that were reserved before, and have not acted yet.
#[test]
fn a_new_quota_takes_over_what_is_reserved() {
    let reserve = |bucket: &mut Bucket, quotas: &Quotas, cost| {
        let decision = reserve(bucket, quotas, START, (cost, MAX_SPAN));
        GiveBack::new(&decision.state, cost, Rule::acts_at(&decision, 0))
    };
    let slow = one(Quota::per_second(1).burst(10));
    for (quota, depends) in [
        (Quota::per_second(10), true),
        (Quota::per_calendar_day(16), false),
    ] {
        let (mut bucket, quotas) = (Bucket::default(), one(quota));
        let [_, second, _] = [10, 5, 1].map(|cost| reserve(&mut bucket, &quotas, cost));
        second.apply(&mut bucket, START);
        let new = reserve(&mut bucket, &slow, 1);
        assert_eq!(new.apply(&mut bucket, START), !depends, "{quotas:?}");
    }
}

/// The next slower quota is one of the same interval, if there is one.
#[test]
fn a_new_burst_takes_over_the_level_of_the_same_interval() {
    let (fast, slow) = (
        one(Quota::per_second(10)),
        one(Quota::per_second(1).burst(10)),
    );
    let mut bucket = Bucket::default();
    assert!(take(&mut bucket, &fast, START, 2) && take(&mut bucket, &slow, START, 4));
    let state = peek(
        &bucket,
        &one(Quota::per_second(10).burst(20)),
        START + 400_000,
    );
    assert_eq!(state.remaining(), 18);
}

#[test]
fn a_change_of_a_calendar_never_refills() {
    let monthly = Quota::per_calendar_month;
    for (from, to, left) in [
        (monthly(10), monthly(20), 13),
        (monthly(10), monthly(5), 3),
        (monthly(10), monthly(10).starting(9).at_offset(120), 3),
        (monthly(10), Quota::per_calendar_day(10), 3),
        (monthly(10), monthly(10).reserve_ahead(true), 3),
        (monthly(10), Quota::per_hour(10), 3),
        (Quota::per_hour(10), monthly(10), 3),
        (monthly(10), Quota::non_refilling(10), 3),
        (Quota::non_refilling(10), monthly(10), 3),
    ] {
        let (mut bucket, from, to) = (Bucket::default(), one(from), one(to));
        assert!(take(&mut bucket, &from, START, 7));
        assert_eq!(peek(&bucket, &to, START).remaining(), left, "{from} {to}");
        assert!(take(&mut bucket, &to, START, left.into()), "{from} {to}");
        assert!(!take(&mut bucket, &to, START, 1), "{from} {to}");
        assert!(
            !take(&mut bucket, &from, START, 4),
            "those under the new quota are charged as well"
        );
    }
}
