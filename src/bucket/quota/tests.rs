//! Which quotas are valid, and how exactly they are stored.

use std::num::NonZeroU32;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::bucket::quotas::Quotas;

/// The stored interval of a quota. No product exceeds the exact integers of Lua.
fn interval(quota: Quota) -> (i64, i64) {
    let quotas = Quotas::new([quota]).unwrap();
    let Tokens { burst, num, den } = quotas.limits()[0].tokens;
    let all = i128::from(burst) * MOST_REPEATS as i128 * i128::from(den);
    assert!(
        i128::from(num) * i128::from(den) < 1 << 53 && den <= 1 << 20,
        "{num}/{den}"
    );
    assert!(den == 1 || all <= 1 << 53, "{burst} of {num}/{den}");
    (num, den)
}

#[test]
fn intervals_are_exact_fractions() {
    assert_eq!(interval(Quota::per_second(5)), (200_000, 1));
    assert_eq!(interval(Quota::per_second(7)), (1_000_000, 7));
    assert_eq!(interval(Quota::per_hour(1000)), (3_600_000, 1));
    assert_eq!(interval(Quota::per_second(4_000_000).burst(1)), (1, 4));
    assert_eq!(interval(Quota::per_second_f64(0.5)), (2_000_000, 1));
    assert_eq!(interval(Quota::per_second_f64(0.1)), (10_000_000, 1));
    assert_eq!(interval(Quota::per_second_f64(2.5)), (400_000, 1));
    assert_eq!(interval(Quota::per_second_f64(7.0)), (1_000_000, 7));
    assert_eq!(interval(Quota::non_refilling(5)), (0, 1));
}

#[test]
fn the_ceiling_of_a_fraction_is_the_nearest_above() {
    let small =
        (1..40).flat_map(|p| (1..40).flat_map(move |q| (1..14).map(move |most| (p, q, most))));
    for (p, q, most) in small.chain([
        (1_000_000, 7, 100),
        (1, 1000, 999),
        (355, 113, 100),
        (355, 113, 113),
    ]) {
        let (num, den) = ceiling(p, q, most);
        assert!(
            (1..=most).contains(&den) && num * q >= p * den,
            "{num}/{den}"
        );
        for other in 1..=most {
            let above = (p * other + q - 1) / q;
            let is_nearer = above * den < num * other || above * den == num * other && other < den;
            assert!(
                !is_nearer,
                "{above}/{other} is nearer to {p}/{q} than {num}/{den}"
            );
        }
    }
}

#[test]
fn any_fractional_rate_has_the_interval_just_above_its_own() {
    let mut rng = StdRng::seed_from_u64(1);
    let random = (0..100_000).map(|_| 10_f64.powf(rng.random_range(-9.0..9.0)));
    for rate in [88e8 / 86_400.0, 1e-9, 1e9].into_iter().chain(random) {
        let (num, den) = interval(Quota::per_second_f64(rate).burst(1));
        let ratio = num as f64 / den as f64 * rate / 1e6;
        assert!(
            (1.0 - 1e-6..1.0 + 1e-5).contains(&ratio),
            "{rate}: {num}/{den} is {ratio} of it"
        );
    }
}

#[test]
fn what_does_not_fit_is_rounded_to_the_slower_side_and_hardly() {
    for (rate, period) in [
        (86_400_007, 86_400),
        (999_999_937, 1),
        (u32::MAX, 7),
        (4_294_967_291, 3600),
    ] {
        let (num, den) = interval(Quota::new(rate, Duration::from_secs(period)));
        let exact = i128::from(period) * 1_000_000 * i128::from(den);
        let rounded = i128::from(num) * i128::from(rate);
        assert!(rounded >= exact, "{rate} per {period} s became faster");
        let small = (rounded - exact) as f64 / (exact as f64);
        assert!(
            small < 0.01,
            "{rate} per {period} s became slower by {small}"
        );
    }
    let (num, den) = interval(Quota::new(86_400_007, Duration::from_secs(86_400)).burst(1000));
    let exact = 86_400e6 / 86_400_007.0;
    assert!((num as f64 / den as f64 - exact) / exact < 1e-6);
}

#[test]
fn a_quota_of_zero_is_closed_whatever_its_period() {
    for text in "0/s|0/day|5/s, burst 0|0/s, burst 5|0 in all|0/month|0.0/min".split('|') {
        let quotas: Quotas = text.parse().unwrap();
        assert_eq!(
            (quotas.to_string().as_str(), quotas.max_cost()),
            ("0/s", 0),
            "{text}"
        );
        assert_eq!(quotas.to_string().parse::<Quotas>().unwrap(), quotas);
        assert!(quotas.limits()[0].is_closed && quotas.limits()[0].are_valid());
        assert_eq!(quotas.share(NonZeroU32::new(3).unwrap()), quotas);
    }
    let set: Quotas = "5/s; 0/h, named \"exports\"".parse().unwrap();
    assert_eq!(
        (set.to_string().as_str(), set.max_cost()),
        ("5/s; 0/s, named \"exports\"", 0)
    );
    assert_ne!("0/s".parse::<Quotas>().unwrap(), "1/s".parse().unwrap());
}

#[test]
fn what_makes_no_sense_cannot_be_built_and_is_told_in_a_sentence() {
    let century = Duration::from_secs(86_400 * 36_525);
    let [day, week, month, year] = [
        Quota::per_calendar_day,
        Quota::per_calendar_week,
        Quota::per_calendar_month,
        Quota::per_calendar_year,
    ];
    let too_short = "period must be at least 1 µs";
    let no_calendar = "only a calendar quota has a start";
    for (quota, named) in [
        (Quota::new(5, Duration::ZERO), too_short),
        (Quota::new(5, Duration::from_nanos(999)), too_short),
        (Quota::new(1, century), "35 years"),
        (Quota::new(1, Duration::MAX), "35 years"),
        (Quota::per_second_f64(f64::NAN), "1e-9 to 1e9"),
        (Quota::per_second_f64(-1.0), "1e-9 to 1e9"),
        (Quota::per_second_f64(f64::INFINITY), "1e-9 to 1e9"),
        (Quota::per_second_f64(1e-9).burst(10), "35 years"),
        (Quota::new(0, Duration::ZERO), too_short),
        (month(0).starting(40), "must be 1 to 31, is 40"),
        (
            week(1).starting(8),
            "the start of a calendar week must be 1 to 7, is 8",
        ),
        (month(1).starting(0), "must be 1 to 31, is 0"),
        (year(1).starting(13), "must be 1 to 12, is 13"),
        (
            day(1).starting(1),
            "a calendar day has no start, is 1: use at_offset",
        ),
        (
            day(1).at_offset(1440),
            "must be -1439 to 1439 minutes, is 1440",
        ),
        (day(1).at_offset(i16::MIN), "minutes, is -32768"),
        (day(5).burst(5), "a calendar quota has no burst, is 5"),
        (Quota::per_day(5).starting(1), no_calendar),
        (Quota::per_day(5).at_offset(0), no_calendar),
        (
            Quota::non_refilling(5).reserve_ahead(true),
            "later windows to reserve",
        ),
        (Quota::per_second(5).named(""), "name must be printable"),
        (Quota::per_second(5).named("a\"b"), "name must be printable"),
        (Quota::per_second(5).named("a\nb"), "name must be printable"),
    ] {
        let error = Quotas::new([quota.clone()]).unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(named),
            "{error}"
        );
        let begin = format!("invalid quota \"{quota}\": ");
        assert!(error.to_string().starts_with(&begin), "{error}");
    }
    let a = || Quota::per_second(1).named("a");
    for (quotas, told) in [
        (vec![], "is 0"),
        (vec![Quota::per_second(1); 9], "is 9"),
        (vec![a(), Quota::per_hour(1).named("a")], "\"a\""),
    ] {
        assert!(Quotas::new(quotas).unwrap_err().to_string().contains(told));
    }
}

#[test]
fn a_share_is_no_more_than_its_part() {
    let whole = Quotas::new([Quota::per_second(100).burst(50), Quota::non_refilling(10)]).unwrap();
    let share = whole.share(NonZeroU32::new(4).unwrap());
    let parts: Vec<_> = share
        .limits()
        .iter()
        .map(|limit| (limit.burst, limit.num, limit.den))
        .collect();
    assert_eq!(parts, [(12, 40_000, 1), (2, 0, 1)]);
    assert_eq!(whole.share(NonZeroU32::MAX).max_cost(), 1);
    // It refills within 35 years.
    let slow = Quotas::new([Quota::per_hour(7).burst(900)]).unwrap();
    for parts in [1, 2, 3, 100, 899, 1_000_000, u32::MAX] {
        let share = slow.share(NonZeroU32::new(parts).unwrap());
        assert!(share.limits()[0].are_valid(), "{parts}: {share}");
    }
    assert!(
        slow.share(NonZeroU32::MAX).limits()[0].num > MAX_SPAN / 2,
        "no sooner"
    );
    let whole = Quotas::new([Quota::per_calendar_month(10).starting(17)]).unwrap();
    assert_eq!(
        whole.share(NonZeroU32::new(4).unwrap()).to_string(),
        "2/month@17"
    );
}

#[test]
fn tokens_take_their_time_to_come_back() {
    for (quota, interval, span) in [
        (Quota::per_second(7).burst(3), 1e6 / 7.0, 428_571),
        (Quota::per_second(7).burst(14), 1e6 / 7.0, 2_000_000),
        (Quota::per_second(4_000_000).burst(6), 0.25, 1),
        (Quota::per_calendar_day(10), 86_400e6 / 10.0, 0),
        (Quota::non_refilling(10), f64::INFINITY, 0),
    ] {
        let limit = Quotas::new([quota]).unwrap().limits()[0].clone();
        assert_eq!(
            (limit.interval(), limit.span),
            (interval, span),
            "{limit:?}"
        );
    }
    let per_second = Quotas::new([Quota::per_second(1)]).unwrap().limits()[0].tokens;
    let most = MAX_SPAN / 1_000_000;
    assert!(!per_second.take_too_long(most) && per_second.take_too_long(most + 1));
}

#[test]
fn stored_numbers_are_those_of_a_quota_or_refused() {
    let are_valid = |burst, num, den| Tokens { burst, num, den }.are_valid();
    let (most, span) = (i64::from(u32::MAX), MAX_SPAN);
    assert!(
        are_valid(1, 1, 1)
            && are_valid(most, 1, 1)
            && are_valid(1, 0, 1)
            && are_valid(1, 1, 1 << 20)
    );
    assert!(!are_valid(0, 1, 1) && !are_valid(most + 1, 1, 1) && !are_valid(1, -1, 1));
    assert!(!are_valid(1, 1, 0) && !are_valid(1, 1, (1 << 20) + 1) && !are_valid(1, 0, 3));
    // All tokens together.
    assert!(
        are_valid(1, span, 1)
            && are_valid(2, span / 2, 1)
            && are_valid(2, span, 2)
            && are_valid(4, span, 4)
    );
    assert!(!are_valid(1, span + 1, 1) && !are_valid(2, span / 2 + 1, 1) && !are_valid(3, span, 2));
    assert!(!are_valid(most, i64::MAX, 1) && !are_valid(4, span, 3));
    assert!(Quotas::stored(std::iter::empty()).is_none());
}

#[test]
fn equal_sets_share_one_value_as_long_as_they_are_used() {
    let set = |burst| Quotas::new([Quota::per_second(7).burst(burst)]).unwrap();
    let first = set(1);
    let others: Vec<_> = (2..500).map(set).collect();
    assert_eq!((set(1).id(), set(2).id()), (first.id(), others[0].id()));
    assert!(first.copy() == first && first.copy().id() != first.id() && first != others[0]);
}
