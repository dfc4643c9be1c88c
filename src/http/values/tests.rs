use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use time::{OffsetDateTime, UtcOffset};

use super::*;
use support::seed;

/// The nanoseconds from 1970 to a time.
fn since_1970(text: &str) -> Option<u128> {
    reset(text, SystemTime::UNIX_EPOCH).map(|span| span.as_nanos())
}

const SECOND: u128 = 1_000_000_000;

#[test]
fn numbers_are_whole_and_of_at_most_15_digits() {
    for (text, read) in [
        ("0", 0),
        ("007", 7),
        ("15.000", 15),
        ("999999999999999", 999_999_999_999_999),
    ] {
        assert_eq!(number(text), Some(read), "{text}");
    }
    for broken in "|-1|+1|1e3|NaN|1.5|1.05|1.|.|.0|inf|1000000000000000|１".split('|') {
        assert_eq!(number(broken), None, "{broken}");
    }
}

#[test]
fn spans_have_units() {
    for (text, nanos) in [
        ("6m0s", 360 * SECOND),
        ("1.5s", 1_500_000_000),
        ("20ms", 20_000_000),
        ("1h2m3s4ms", 3723 * SECOND + 4_000_000),
        ("1d", 86_400 * SECOND),
        ("0.25d", 21_600 * SECOND),
        ("7us", 7_000),
        ("7.25µs", 7_250),
        ("3ns", 3),
        ("1.000000001s", SECOND + 1),
        ("0.05s", 50_000_000),
        // Fractions of a nanosecond are cut off.
        ("1.23456789999999s", 1_234_567_899),
        ("0.9999ns", 0),
    ] {
        assert_eq!(
            span(text).map(|span| span.as_nanos()),
            Some(nanos),
            "{text}"
        );
    }
    for broken in "|s|1|1x|1.s|.5s|-1s|1s1|NaNs|9999999999999999s|1 s|1.2.3s".split('|') {
        assert_eq!(span(broken), None, "{broken}");
    }
    assert_eq!(
        span(&"999999999999999d".repeat(3)),
        None,
        "more than a span can hold"
    );
}

#[test]
fn the_size_of_a_reset_tells_what_it_counts() {
    for (text, nanos) in [
        ("0", 0),
        ("0.25", SECOND / 4),
        ("99999999.5", 99_999_999 * SECOND + SECOND / 2),
        ("1000000000", SECOND * 1_000_000_000),
        ("1795737600.25", SECOND * 1_795_737_600 + SECOND / 4),
        ("99999999999", SECOND * 99_999_999_999),
        ("1000000000000", SECOND * 1_000_000_000),
        ("1795737600250", SECOND * 1_795_737_600 + SECOND / 4),
        ("99999999999999", SECOND * 99_999_999_999 + 999_000_000),
        ("1m5s", 65 * SECOND),
        ("Fri, 27 Nov 2026 00:00:50 GMT", SECOND * 1_795_737_650),
    ] {
        assert_eq!(since_1970(text), Some(nanos), "{text}");
    }
    for broken in
        " -5 100000000 999999999 100000000000 999999999999 100000000000000 999999999999999 1e30 NaN"
            .split(' ')
    {
        assert_eq!(since_1970(broken), None, "{broken}");
    }
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_737_600);
    for (text, seconds) in [
        ("50", 50),
        ("1795737650", 50),
        ("1795737650000", 50),
        ("1795737599", 0),
        ("50s", 50),
    ] {
        assert_eq!(
            reset(text, now),
            Some(Duration::from_secs(seconds)),
            "{text}"
        );
    }
}

#[test]
fn any_date_is_that_of_a_date_library() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..20_000 {
        // From 1970 to 9999.
        let nanos = rng.random_range(86_400 * SECOND..253_402_214_400 * SECOND);
        let nanos = nanos - nanos % [SECOND, SECOND / 1000, 1][rng.random_range(0..3)];
        let minutes = [0, rng.random_range(-1439..=1439)][rng.random_range(0..2)];
        let at = OffsetDateTime::from_unix_timestamp_nanos(nanos.cast_signed()).unwrap();
        let at = at.to_offset(UtcOffset::from_whole_seconds(minutes * 60).unwrap());
        let (sign, apart) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
        let offset = match apart {
            0 => "Z".to_owned(),
            _ => format!("{sign}{:02}:{:02}", apart / 60, apart % 60),
        };
        let fraction = match at.nanosecond() {
            0 => String::new(),
            nanos => format!(".{nanos:09}").trim_end_matches('0').to_owned(),
        };
        let (date, (hour, minute, second)) = (at.date(), at.time().as_hms());
        for between in ["T", "t", " "] {
            let text =
                format!("{date}{between}{hour:02}:{minute:02}:{second:02}{fraction}{offset}");
            assert_eq!(since_1970(&text), Some(nanos), "SEED={seed}, {text}");
        }
    }
}

#[test]
fn dates_are_checked() {
    let midnight = 1_795_737_600;
    for (text, seconds) in [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-27T00:00:00.000Z", midnight),
        ("2026-11-27t23:59:59Z", midnight + 86_399),
        // A leap second is the next second.
        ("2026-11-27T23:59:60Z", midnight + 86_400),
        ("2026-11-28T23:59:00+23:59", midnight + 86_400),
        ("2026-11-27T00:00:00-23:59", midnight + 86_340),
    ] {
        assert_eq!(since_1970(text), Some(seconds * SECOND), "{text}");
    }
    let broken = "1969-12-31T23:59:59Z 1970-01-01T00:00:00+00:01 2026-00-27T00:00:00Z 2026-13-01T00:00:00Z \
         2026-11-00T00:00:00Z 2026-11-32T00:00:00Z 2026-11-27T24:00:00Z 2026-11-27T00:60:00Z \
         2026-11-27T00:00:61Z 2026-11-27T00:00:00+24:00 2026-11-27T00:00:00+00:60 2026-11-27T00:00:00+2400 \
         2026-11-27T00:00:00*02:00 2026-11-27T00:00:00 2026-11-27T00:00:00.Z 2026-11-27T00:00:00.5 \
         2026-11-27 2026/11-27T00:00:00Z 2026-11/27T00:00:00Z 2026-11-27_00:00:00Z 2026-11-27T00.00:00Z \
         2026-11-27T00:00.00Z é026-11-27T";
    for broken in broken.split(' ') {
        assert_eq!(since_1970(broken), None, "{broken}");
    }
}

#[test]
fn a_value_has_at_most_64_bytes_and_equal_copies() {
    let value = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("a", HeaderValue::from_str(value).unwrap());
        }
        super::value(&headers, "a").map(|value| value.map(str::to_owned))
    };
    let longest = "9".repeat(LONGEST);
    assert_eq!(value(&[]), None);
    assert_eq!(value(&[" 7 "]), Some(Some("7".to_owned())));
    assert_eq!(
        (value(&[&longest]), value(&[&(longest.clone() + "9")])),
        (Some(Some(longest.clone())), Some(None))
    );
    assert_eq!(
        (value(&["7", "7", "7"]), value(&["7", "7", "8"])),
        (Some(Some("7".to_owned())), Some(None))
    );
}
