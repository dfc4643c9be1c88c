//! Numbers, time spans and times in header fields of upstreams.
//!
//! `None`: the text is not one of these, or out of range. The work is bounded by [`LONGEST`] bytes.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};

use crate::bucket::calendar::days_before;

#[cfg(test)]
mod tests;

/// Longer values are not read.
const LONGEST: usize = 64;

/// Further copies of a field are not read.
const MOST_COPIES: usize = 64;

/// The units of a span, as Go writes them.
const UNITS: [(&str, u64); 8] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("µs", 1000),
    ("ns", 1),
];

/// The value of a field. `Some(None)`: the field exists, but cannot be read, or its copies differ.
pub(crate) fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<Option<&'a str>> {
    let mut copies = texts(headers, name);
    let first = copies.next()?;
    // Some proxies repeat a field.
    Some(first.filter(|_| copies.all(|other| other == first)))
}

/// The values of a field, at most [`MOST_COPIES`] of them. `None`: one of them cannot be read.
pub(crate) fn texts<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> impl Iterator<Item = Option<&'a str>> {
    let text = |value: &'a HeaderValue| std::str::from_utf8(value.as_bytes()).ok();
    let texts = headers
        .get_all(name)
        .iter()
        .map(move |value| text(value).map(str::trim));
    texts
        .map(|text| text.filter(|text| text.len() <= LONGEST))
        .take(MOST_COPIES)
}

/// A whole number of at most 15 digits. Some upstreams write a fraction of zeros.
pub(crate) fn number(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_whole = !fraction.is_empty() && fraction.bytes().all(|byte| byte == b'0');
    if is_whole { digits(whole) } else { None }
}

fn digits(text: &str) -> Option<u64> {
    let fits = (1..=15).contains(&text.len()) && are_digits(text);
    if fits { text.parse().ok() } else { None }
}

fn are_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A time to wait, from `now` on: a number of units of `unit` nanoseconds, a span with units, or a date. A number with
/// more than 15 digits is the maximum time. A date in the past is zero.
pub(crate) fn wait(text: &str, unit: u64, now: SystemTime) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if whole.len() > 15 && are_digits(whole) && are_digits(fraction) {
        return Some(Duration::MAX);
    }
    times(text, unit)
        .or_else(|| span(text))
        .or_else(|| until(text, now))
}

/// The time until a date.
fn until(text: &str, now: SystemTime) -> Option<Duration> {
    let date = rfc3339(text).or_else(|| httpdate::parse_http_date(text).ok())?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

/// Decimal digits with or without a fraction, times `unit` nanoseconds.
fn times(text: &str, unit: u64) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole = u128::from(digits(whole)?) * u128::from(unit);
    if !are_digits(fraction) {
        return None;
    }
    // Nanoseconds are the finest resolution.
    let digits = &fraction[..fraction.len().min(9)];
    let part = u128::from(digits.parse::<u64>().ok()?) * u128::from(unit)
        / 10_u128.pow(digits.len() as u32);
    let nanos = whole + part;
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

/// A span such as `6m0s`, `1.5s` or `20ms`: parts with a unit.
pub(super) fn span(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (amount, after) = rest.split_at(end);
        let end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(times(amount, *nanos)?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(sum)
}

/// When a limit resets, from `now` on: seconds from now, seconds or milliseconds since 1970, a span with units, or a
/// date. A number below 10⁸ (3 years) counts from now; one from 10⁹ (the year 2001) on is in seconds, from 10¹² on in
/// milliseconds. A time in the past is zero.
pub(crate) fn reset(text: &str, now: SystemTime) -> Option<Duration> {
    let since_1970 = |span| {
        let at = SystemTime::UNIX_EPOCH.checked_add(span)?;
        Some(at.duration_since(now).unwrap_or(Duration::ZERO))
    };
    if let Some(number) = times(text, 1_000_000_000) {
        return match number.as_secs() {
            ..100_000_000 => Some(number),
            1_000_000_000..100_000_000_000 => since_1970(number),
            1_000_000_000_000..100_000_000_000_000 => since_1970(number / 1000),
            _ => None,
        };
    }
    span(text).or_else(|| until(text, now))
}

/// A time such as `2026-01-27T12:34:56.789Z` or `2026-01-27T12:34:56+02:00` (RFC 3339).
fn rfc3339(text: &str) -> Option<SystemTime> {
    let number =
        |text: &str, at: std::ops::Range<usize>| i64::try_from(digits(text.get(at)?)?).ok();
    let bytes = text.as_bytes();
    let is_at = |at: usize, of: &[u8]| bytes.get(at).is_some_and(|byte| of.contains(byte));
    if ![
        (4, b"-" as &[u8]),
        (7, b"-"),
        (10, b"Tt "),
        (13, b":"),
        (16, b":"),
    ]
    .iter()
    .all(|(at, of)| is_at(*at, of))
    {
        return None;
    }
    let (year, month, day) = (
        number(text, 0..4)?,
        number(text, 5..7)?,
        number(text, 8..10)?,
    );
    let (hour, minute, second) = (
        number(text, 11..13)?,
        number(text, 14..16)?,
        number(text, 17..19)?,
    );
    let is_date = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
    // A leap second is second 60.
    if !is_date || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = Duration::ZERO;
    if rest.starts_with('.') {
        let end = rest[1..].find(|c: char| !c.is_ascii_digit())? + 1;
        nanos = times(&format!("0{}", &rest[..end]), 1_000_000_000)?;
        rest = &rest[end..];
    }
    let offset = match rest.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (number(rest, 1..3)?, number(rest, 4..6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let seconds = hours * 3600 + minutes * 60;
            if *sign == b'+' { seconds } else { -seconds }
        }
        _ => return None,
    };
    let days = days_before(year, month) + day - 1;
    let seconds =
        u64::try_from(days * 86_400 + hour * 3600 + minute * 60 + second - offset).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds) + nanos)
}
