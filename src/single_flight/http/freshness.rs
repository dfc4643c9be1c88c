//! The freshness lifetime that a response states (RFC 9111, 4.2).
//!
//! The crate `http-cache-semantics` 3.0 is not used: it does not distinguish a response without a lifetime from a
//! lifetime of 0, which decides whether the flight's ttl applies, and it treats every `proxy-revalidate` as a
//! lifetime of 0.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{AGE, CACHE_CONTROL, DATE, EXPIRES, HeaderName};

use crate::http::lists::{any_directive, directive};

#[cfg(test)]
mod tests;

/// The freshness of a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Freshness {
    /// How long the response may be reused from now on. `None`: it does not state a lifetime.
    pub(crate) left: Option<Duration>,
    /// Whether it may be served stale while a fresh one is made.
    pub(crate) stale: bool,
    /// The age of the response.
    pub(crate) age: Duration,
}

impl Freshness {
    pub(crate) fn of(headers: &HeaderMap, now: SystemTime) -> Self {
        let date = time(headers, &DATE);
        let since_date = date
            .and_then(|date| now.duration_since(date).ok())
            .unwrap_or_default();
        let told = headers
            .get(AGE)
            .and_then(|age| seconds(age.as_bytes()))
            .unwrap_or_default();
        let age = since_date.max(told);
        let controls = if headers.contains_key(CACHE_CONTROL) {
            &["s-maxage", "max-age"][..]
        } else {
            &[]
        };
        let explicit = controls.iter().find_map(|name| {
            // The shortest of several values counts. An invalid value counts as 0.
            let values =
                directive(headers, name).map(|value| value.and_then(seconds).unwrap_or_default());
            values.min()
        });
        let expires = || {
            let at = headers
                .contains_key(EXPIRES)
                .then(|| time(headers, &EXPIRES))?;
            Some(
                at.and_then(|at| at.duration_since(date.unwrap_or(now)).ok())
                    .unwrap_or_default(),
            )
        };
        let must_revalidate = any_directive(
            headers,
            &["must-revalidate", "proxy-revalidate", "s-maxage"],
        );
        let left = explicit
            .or_else(expires)
            .map(|lifetime| lifetime.saturating_sub(age));
        Self {
            left,
            stale: !must_revalidate,
            age,
        }
    }
}

fn time(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

/// Parses delta-seconds (RFC 9111, 1.2.2), with or without quotes. A larger number is reduced to 2^31.
fn seconds(text: &[u8]) -> Option<Duration> {
    let text = text
        .strip_prefix(b"\"")
        .and_then(|text| text.strip_suffix(b"\""))
        .unwrap_or(text);
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let seconds = std::str::from_utf8(text)
        .ok()?
        .parse::<u64>()
        .unwrap_or(u64::MAX);
    Some(Duration::from_secs(seconds.min(1 << 31)))
}
