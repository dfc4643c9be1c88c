//! The time when a response was made, and whether it comes from a cache.

use std::time::{Duration, SystemTime};

use http::header::{AGE, DATE};
use http::{HeaderMap, HeaderName, HeaderValue};

#[cfg(test)]
mod tests;

/// The age of a response, and whether a cache stored it, from its header fields.
///
/// The limits in a response from a cache are those of the time when it was stored. RFC 9111 (5.1) defines `Age`. An age
/// of 0 is no sign of a cache: some servers send it with each response, and a response younger than a second counts as
/// new. Other signs are `hit` in `Cache-Status` (RFC 9211), and `HIT`, `STALE` and `UPDATING` in the fields that common
/// caches send. A 304 is not stored: its fields are new.
#[derive(Debug, PartialEq)]
pub(crate) struct Origin {
    /// When the response was made, by the clock of the server that made it; without a `Date`, now minus the age.
    pub(crate) made: SystemTime,
    /// The age of the response.
    pub(crate) age: Duration,
    pub(crate) is_stored: bool,
    /// How many of these fields cannot be read.
    pub(crate) ignored: u64,
}

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// The fields of Varnish, Squid, CloudFront, Fastly, Akamai and others; of nginx, by convention; of Cloudflare.
const IN_USE: [HeaderName; 3] = [
    HeaderName::from_static("x-cache"),
    HeaderName::from_static("x-cache-status"),
    HeaderName::from_static("cf-cache-status"),
];

impl Origin {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = |name| {
            headers
                .get(name)
                .map(|value: &HeaderValue| value.to_str().unwrap_or("").trim())
        };
        let (told_age, told_date) = (text(AGE), text(DATE));
        let age = told_age.map(age);
        let date = told_date.map(|date| httpdate::parse_http_date(date).ok());
        let ignored = u64::from(age == Some(None)) + u64::from(date == Some(None));
        let age = age.flatten().unwrap_or(Duration::ZERO);
        let made = date
            .flatten()
            .or_else(|| SystemTime::now().checked_sub(age));
        Self {
            made: made.unwrap_or(SystemTime::UNIX_EPOCH),
            age,
            is_stored: !age.is_zero() || is_hit(headers),
            ignored,
        }
    }
}

/// Reads an age. It is one number; in a list, the first one applies.
fn age(text: &str) -> Option<Duration> {
    let first = text.split(',').next()?.trim();
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    // A number that exceeds the type is the maximum age.
    is_number.then(|| Duration::from_secs(first.parse().unwrap_or(u64::MAX)))
}

/// Whether a cache states that the response is a hit.
fn is_hit(headers: &HeaderMap) -> bool {
    let any = |name: &HeaderName, is_hit: fn(&str) -> bool| {
        let values = headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(is_hit)
    };
    let has_parameter = |cache: &str| {
        cache
            .split(';')
            .skip(1)
            .any(|parameter| matches!(parameter.trim(), "hit" | "hit=?1"))
    };
    any(&CACHE_STATUS, has_parameter) || IN_USE.iter().any(|name| any(name, is_hit_in_use))
}

/// Whether a value such as `HIT`, `Hit from cloudfront` or `TCP_MEM_HIT from a.example` is a hit. A response that was
/// revalidated, such as `TCP_REFRESH_HIT` and `RefreshHit from cloudfront`, has new fields.
fn is_hit_in_use(value: &str) -> bool {
    let status = value.split_whitespace().next().unwrap_or("");
    let mut words = status.split('_');
    words.clone().any(|word| {
        ["HIT", "STALE", "UPDATING"]
            .iter()
            .any(|hit| word.eq_ignore_ascii_case(hit))
    }) && !words.any(|word| word.eq_ignore_ascii_case("REFRESH"))
}
