//! The windows of calendars, compared to the dates of the crate `time`.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use time::{Date, Duration, Month, OffsetDateTime, UtcOffset};

use super::*;
use support::seed;

/// The first instant after the year 2200.
pub(crate) const END: i64 = 7_289_654_400_000_000;

fn calendar(unit: Unit, settings: Settings) -> Calendar {
    Calendar::from_code(settings.code(unit).unwrap()).unwrap()
}

/// A random calendar, and its unit and settings.
fn random(rng: &mut StdRng) -> (Calendar, Unit, u8, i16) {
    let unit = *Unit::ALL.choose(rng).unwrap();
    let most = unit.starts().0;
    let start = rng.random_range(1..=most.max(1));
    let offset = if rng.random_bool(0.3) {
        0
    } else {
        rng.random_range(-1439..=1439)
    };
    let settings = Settings {
        starting: (most > 0).then_some(start),
        offset: Some(offset),
        ahead: rng.random_bool(0.5),
    };
    (calendar(unit, settings), unit, start, offset)
}

/// A random code of a calendar.
pub(crate) fn random_code(rng: &mut StdRng) -> i64 {
    let (_, unit, start, offset) = random(rng);
    let starting = (unit != Unit::Day).then_some(start);
    Settings {
        starting,
        offset: Some(offset),
        ahead: false,
    }
    .code(unit)
    .unwrap()
}

/// A random instant; often within a second of midnight.
pub(crate) fn random_instant(rng: &mut StdRng) -> i64 {
    let at = rng.random_range(0..END);
    match rng.random_range(0..3) {
        0 => at - at % 86_400_000_000 + *[-1, 0, 1, 999_999].choose(rng).unwrap(),
        _ => at,
    }
    .max(0)
}

fn micros(date: Date, offset: UtcOffset) -> i64 {
    let at = date.midnight().assume_offset(offset);
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap()
}

fn in_month(year: i32, month: Month, day: u8) -> Date {
    Date::from_calendar_date(year, month, day.min(month.length(year))).unwrap()
}

fn next_month(year: i32, month: Month) -> (i32, Month) {
    (
        if month == Month::December {
            year + 1
        } else {
            year
        },
        month.next(),
    )
}

/// The window around a date by the other library: its first day, and the first day of the next window.
fn window_of(date: Date, unit: Unit, start: u8) -> (Date, Date) {
    match unit {
        Unit::Day => (date, date + Duration::DAY),
        Unit::Week => {
            let passed = (7 + date.weekday().number_from_monday() - start) % 7;
            let first = date - Duration::days(passed.into());
            (first, first + Duration::WEEK)
        }
        Unit::Month => {
            let (mut year, mut month) = (date.year(), date.month());
            if date < in_month(year, month, start) {
                year -= i32::from(month == Month::January);
                month = month.previous();
            }
            let (next_year, next) = next_month(year, month);
            (
                in_month(year, month, start),
                in_month(next_year, next, start),
            )
        }
        Unit::Year => {
            let month = Month::try_from(start).unwrap();
            let this = in_month(date.year(), month, 1);
            let year = date.year() - i32::from(date < this);
            (in_month(year, month, 1), in_month(year + 1, month, 1))
        }
    }
}

#[test]
fn windows_are_those_of_a_date_library() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..1_000_000 {
        let (calendar, unit, start, minutes) = random(&mut rng);
        let at = random_instant(&mut rng);
        let offset = UtcOffset::from_whole_seconds(i32::from(minutes) * 60).unwrap();
        let instant = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at) * 1000).unwrap();
        let (first, next) = window_of(instant.to_offset(offset).date(), unit, start);
        let window = calendar.window(at);
        let ours = (calendar.start(window), calendar.start(window + 1));
        let theirs = (micros(first, offset), micros(next, offset));
        assert_eq!(ours, theirs, "SEED={seed}, {calendar:?} at {at}");
        assert!((ours.0..ours.1).contains(&at) && window > 0);
        assert_eq!(
            calendar.window(ours.0 - 1),
            window - 1,
            "SEED={seed}, {calendar:?} at {at}"
        );
        assert_eq!(
            calendar.window(ours.1),
            window + 1,
            "SEED={seed}, {calendar:?} at {at}"
        );
    }
}

/// Codes that a store may have stored.
#[test]
fn every_code_is_a_calendar_or_refused() {
    let mut calendars = 0;
    for code in 2..=1 << 20 {
        let tokens = Tokens {
            burst: 5,
            num: 0,
            den: code,
        };
        assert_eq!(Calendar::of(&tokens).is_some(), tokens.are_valid());
        let Some((unit, settings)) = described(&tokens) else {
            continue;
        };
        calendars += 1;
        assert_eq!(settings.code(unit), Ok(code));
        let calendar = Calendar::of(&tokens).unwrap();
        let window = calendar.window(1_760_000_000_000_000);
        assert_eq!(calendar.window(calendar.start(window)), window);
    }
    assert_eq!(calendars, 2 * (1 + 7 + 31 + 12) * 2879);
}

#[test]
fn averages_are_those_of_400_years() {
    for unit in Unit::ALL {
        let calendar = calendar(unit, Settings::NONE);
        let (begin, end) = (
            calendar.window(0),
            calendar.window(400 * 365 * DAY + 97 * DAY),
        );
        assert_eq!(
            calendar.average() * (end - begin) as f64,
            (146_097 * DAY) as f64
        );
    }
}
