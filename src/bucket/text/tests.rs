use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

fn read(text: &str) -> Quota {
    text.parse().unwrap()
}

#[test]
fn quotas_are_read() {
    for text in "100/min|100 / min| 100/1minute |100/minutes|100/60s|100/60 seconds".split('|') {
        assert_eq!(read(text), Quota::per_minute(100), "{text}");
    }
    assert_eq!(
        read("3/10s,burst 7"),
        Quota::new(3, Duration::from_secs(10)).burst(7)
    );
    assert_eq!(read("0.5/s"), Quota::per_second_f64(0.5));
    assert_eq!(
        read("30.0/min, burst 2"),
        Quota::per_second_f64(0.5).burst(2)
    );
    assert_eq!(read("50 in all"), Quota::non_refilling(50));
    assert_eq!(
        read("1/h, named \"a, b; c/d\", burst 2"),
        Quota::per_hour(1).named("a, b; c/d").burst(2)
    );
    let several: Quotas = "10/s;1000/h, named \"x;y\" ; 5 in all".parse().unwrap();
    let [a, b, c] = [
        Quota::per_second(10),
        Quota::per_hour(1000).named("x;y"),
        Quota::non_refilling(5),
    ];
    assert_eq!(several, Quotas::new([a, b, c]).unwrap());
    assert_eq!(
        Quotas::try_from("10/s").unwrap(),
        Quotas::new([Quota::per_second(10)]).unwrap()
    );
}

#[test]
fn what_is_wrong_is_named() {
    for (text, part) in [
        ("", "missing"),
        ("100", "missing"),
        ("/s", "\"\" is not a number"),
        ("x/s", "\"x/s\" is unexpected"),
        ("100/fortnight", "\"fortnight\" is not a unit"),
        ("100/", "\"\" is not a unit"),
        ("4294967296/s", "\"4294967296\" is not a number"),
        ("1e/s", "\"1e\" is not a number"),
        ("1/18446744073709551615d", "too long"),
        (
            "1/18446744073709551616d",
            "\"18446744073709551616\" is not a number",
        ),
        ("10/s, burst", "\"\" is not a number"),
        ("10/s, burst x", "\"\" is not a number"),
        ("10/s, bursts 4", "is not a number"),
        ("10/s, named x", "\"x\" is unexpected"),
        ("10/s, named \"x", "\"x\" is unexpected"),
        ("10/s burst 4", "\"burst 4\" is unexpected"),
        ("10/s; ", "missing"),
        ("-3/s", "\"-3\" is not a number"),
        ("100/fortnight", "at position 5, \"fortnight\""),
        ("10/s; 5/fortnight", "at position 9, \"fortnight\""),
        ("5/µ; 1/s", "at position 3, \"µ\""),
        (
            "5/calendar",
            "at position 11, \"\" is not a unit: use day, week, month or year",
        ),
        (
            "5/calendar hour",
            "at position 12, \"hour\" is not a unit: use day, week",
        ),
        (
            "5/month@32",
            "at position 8, \"@32\" is not possible: the start of a calendar month must be 1 to 31, is 32",
        ),
        ("5/week@0", "must be 1 to 7, is 0"),
        ("5/year@13", "must be 1 to 12, is 13"),
        (
            "5/calendar day@2",
            "at position 15, \"@2\" is not possible: a calendar day has no start",
        ),
        ("5/month@", "\"\" is not a number"),
        ("5/month@999", "\"999\" is not a number, or is too large"),
        (
            "5/month+24:00",
            "at position 8, \"+24:00\" is not an offset from UTC: use -23:59 to +23:59",
        ),
        (
            "5/month@17-2:00",
            "at position 11, \"-2:00\" is not an offset",
        ),
        ("5/month+02", "\"+02\" is not an offset"),
        ("5/month+02:00:00", "is not an offset"),
        ("5/month++2:00", "is not an offset"),
        ("5/month+", "is not an offset"),
        (
            "5/2month",
            "at position 4, \"month\" cannot have a count, has 2",
        ),
        ("0.5/month", "\"0.5\" is not a number"),
        ("5/month, burst 7", "a calendar quota has no burst, is 7"),
        ("5/month, reserve", "missing"),
        ("5/d, reserve ahead", "only a calendar quota"),
        ("5/day@2", "\"@2\" is unexpected"),
    ] {
        let error = text.parse::<Quotas>().unwrap_err();
        let told = error.to_string();
        assert!(error.is_invalid() && told.contains(part), "{text}: {told}");
        let is_built = told.starts_with("invalid quota \"5/") && !told.contains("100/min");
        assert!(
            is_built || told.contains(&format!("{text:?}")) && told.contains("100/min"),
            "{text}: {told}"
        );
    }
    assert!(
        "10/s; 5/s"
            .parse::<Quota>()
            .unwrap_err()
            .to_string()
            .contains("\"; 5/s\" is unexpected")
    );
}

fn random_calendar(rng: &mut StdRng) -> Quota {
    let tokens = rng.random_range(1..10_000);
    let (quota, most) = match rng.random_range(0..4) {
        0 => (Quota::per_calendar_day(tokens), 0),
        1 => (Quota::per_calendar_week(tokens), 7),
        2 => (Quota::per_calendar_month(tokens), 31),
        _ => (Quota::per_calendar_year(tokens), 12),
    };
    let quota = if most > 0 && rng.random() {
        quota.starting(rng.random_range(1..=most))
    } else {
        quota
    };
    let quota = if rng.random() {
        quota.at_offset(rng.random_range(-1439..=1439))
    } else {
        quota
    };
    quota.reserve_ahead(rng.random())
}

/// `d` and `day` are 24 hours, as before there were calendar quotas.
#[test]
fn calendar_quotas_are_read() {
    assert_eq!(read("10/day"), Quota::per_day(10));
    assert_eq!(read("10/calendar day"), Quota::per_calendar_day(10));
    assert_eq!(read("10/week"), Quota::per_calendar_week(10));
    assert_eq!(
        read("10 / calendar week @ 7"),
        Quota::per_calendar_week(10).starting(7)
    );
    assert_eq!(
        read("10000/month@17+02:00"),
        Quota::per_calendar_month(10_000)
            .starting(17)
            .at_offset(120)
    );
    assert_eq!(read("1/year@4-05:30, reserve ahead, named \"y\""), {
        Quota::per_calendar_year(1)
            .starting(4)
            .at_offset(-330)
            .reserve_ahead(true)
            .named("y")
    });
    let several: Quotas = "10/s; 10000/month@1+00:00".parse().unwrap();
    assert_eq!(
        several,
        Quotas::new([Quota::per_second(10), Quota::per_calendar_month(10_000)]).unwrap()
    );
    assert_eq!(several.to_string(), "10/s; 10000/month");
}

#[test]
fn what_is_written_is_read_as_the_same() {
    let mut rng = StdRng::seed_from_u64(7);
    let spans = [
        1,
        999,
        1000,
        60_000,
        1_000_000,
        10_000_000,
        60_000_000,
        3_600_000_000,
        86_400_000_000,
    ];
    for _ in 0..20_000 {
        let period =
            Duration::from_micros(spans[rng.random_range(0..spans.len())] * rng.random_range(1..5));
        let mut quota = match rng.random_range(0..6) {
            4 => random_calendar(&mut rng),
            0 => Quota::non_refilling(rng.random_range(1..1000)),
            1 => Quota::per_second_f64(rng.random_range(0.001..1000.0)),
            _ => Quota::new(rng.random_range(1..10_000), period),
        };
        if rng.random_bool(0.5) && !matches!(quota.rate, Rate::Calendar(..)) {
            quota = quota.burst(rng.random_range(1..1000));
        }
        if rng.random_bool(0.3) {
            quota = quota.named("a; b, \u{7e}c");
        }
        assert_eq!(read(&quota.to_string()), quota, "{quota}");
        let Ok(quotas) = Quotas::new([quota.clone(), Quota::per_hour(7)]) else {
            continue;
        };
        let text = quotas.to_string();
        assert_eq!(text.parse::<Quotas>().unwrap(), quotas, "{text} of {quota}");
    }
}

#[test]
fn they_are_written_as_one_would() {
    for (text, written) in [
        ("100/min, burst 20", "100/min, burst 20"),
        ("1000/h", "1000/h"),
        ("60/min", "1/s, burst 60"),
        ("3/10s", "18/min, burst 3"),
        ("50 in all, named \"x\"", "50 in all, named \"x\""),
        ("10/s; 1000/h", "10/s; 1000/h"),
    ] {
        assert_eq!(text.parse::<Quotas>().unwrap().to_string(), written);
    }
    for (quota, written) in [
        (Quota::new(3, Duration::from_secs(10)), "3/10s"),
        (Quota::per_second_f64(2.0), "2.0/s"),
        (Quota::new(1, Duration::from_micros(1500)), "1/1500us"),
        (Quota::per_day(1).named("daily"), "1/d, named \"daily\""),
        (Quota::new(5, Duration::ZERO), "5/0s"),
    ] {
        assert_eq!(quota.to_string(), written);
    }
}

#[cfg(all(feature = "serde", feature = "json"))]
#[test]
fn serde_takes_them_as_text() {
    let quotas: Quotas = serde_json::from_str("\"10/s; 1000/h\"").unwrap();
    assert_eq!(serde_json::to_string(&quotas).unwrap(), "\"10/s; 1000/h\"");
    let error = serde_json::from_str::<Quota>("\"10/x\"").unwrap_err();
    assert!(error.to_string().contains("\"x\" is not a unit"), "{error}");
    assert!(
        serde_json::from_str::<Quota>("7")
            .unwrap_err()
            .to_string()
            .contains("such as")
    );
}
