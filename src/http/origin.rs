//! When a response was made, and whether it comes from a cache.

use std::time::{Duration, SystemTime};

use http::header::{AGE, DATE};
use http::{HeaderMap, HeaderName, HeaderValue};

#[cfg(test)]
mod tests;

/// What a response says of its own making.
///
/// What a cache has stored tells what was. RFC 9111 (5.1) has the age of a response in `Age`. An age of 0 is no sign of a cache:
/// some send it with each response, and what is younger than a second is as good as new. Other signs are `hit` in `Cache-Status`
/// (RFC 9211), and `HIT`, `STALE` and `UPDATING` in the fields that common caches send. A 304 is none: its fields are new.
#[derive(Debug, PartialEq)]
pub(crate) struct Origin {
    /// When it was made, by the clock of its maker, if it says so.
    pub(crate) made: SystemTime,
    /// How old it is since.
    pub(crate) age: Duration,
    pub(crate) is_stored: bool,
    /// How many of these fields cannot be read.
    pub(crate) ignored: u64,
}

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// Of Varnish, Squid, CloudFront, Fastly, Akamai and others; of nginx, by custom; of Cloudflare.
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

/// Reads an age. It is one number; of a list, the first counts.
fn age(text: &str) -> Option<Duration> {
    let first = text.split(',').next()?.trim();
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    // More than a number holds is as old as can be.
    is_number.then(|| Duration::from_secs(first.parse().unwrap_or(u64::MAX)))
}

/// Whether a cache says that it had the response.
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

/// Whether a value such as `HIT`, `Hit from cloudfront` or `TCP_MEM_HIT from a.example` is a hit. One that was validated, such as
/// `TCP_REFRESH_HIT` and `RefreshHit from cloudfront`, has new fields.
fn is_hit_in_use(value: &str) -> bool {
    let status = value.split_whitespace().next().unwrap_or("");
    let mut words = status.split('_');
    words.clone().any(|word| {
        ["HIT", "STALE", "UPDATING"]
            .iter()
            .any(|hit| word.eq_ignore_ascii_case(hit))
    }) && !words.any(|word| word.eq_ignore_ascii_case("REFRESH"))
}
