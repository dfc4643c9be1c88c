//! Decides by the head of a response whether it may be shared with other requests, and for how long.

use std::time::{Duration, SystemTime};

use http::header::{
    AGE, CACHE_CONTROL, CONTENT_TYPE, DATE, EXPIRES, HeaderMap, HeaderName, PROXY_AUTHENTICATE,
    SET_COOKIE, VARY, WWW_AUTHENTICATE,
};
use http::{HeaderValue, StatusCode, response};

use crate::http::message::{any_directive, directive, items};

#[cfg(test)]
mod tests;

/// Returns whether a response may be shared with other requests of the same target: the default of
/// [`Responses::share_when`](crate::response::Responses::share_when).
///
/// A response is shareable if its status describes the resource: any 2xx or 3xx, 404 and 410. It is not shareable
///
/// * with any other status: 4xx describes the one request (401, 403, 429, and also 400, since a request with an
///   invalid header field would fail all others), and 5xx is a failure, after which the next request tries again;
/// * with 206, 226 or 304, which answer ranges and conditions of one request;
/// * with `Set-Cookie` or authentication fields (`WWW-Authenticate`, `Authentication-Info`, `Proxy-Authenticate`,
///   `Proxy-Authentication-Info`);
/// * with `Cache-Control: private`, `no-store` or `no-cache`, also for some fields only, or with `Vary: *`;
/// * if it is gRPC, whose status is in the trailers, or a stream by its content type: `text/event-stream`,
///   `multipart/x-mixed-replace`, lines or sequences of JSON.
///
/// It is served for the flight's [TTL](crate::single_flight::SingleFlightBuilder::ttl_with) or for the lifetime
/// that the response states (`s-maxage`, `max-age`, `Expires`), whichever is shorter.
#[must_use]
pub fn is_shareable(response: &response::Parts) -> bool {
    describes_the_resource(response.status) && is_for_all(&response.headers)
}

/// Returns whether no header field marks the response as private or as an endless stream.
pub(crate) fn is_for_all(headers: &HeaderMap) -> bool {
    // Comparing a few names costs less than hashing each of them.
    !headers.keys().any(|field| OF_ONE_CLIENT.contains(field))
        && !any_directive(headers, &["private", "no-store", "no-cache"])
        && !items(headers, &VARY).any(|name| name == b"*")
        && !headers.get(CONTENT_TYPE).is_some_and(is_stream)
}

fn describes_the_resource(status: StatusCode) -> bool {
    match status {
        StatusCode::PARTIAL_CONTENT | StatusCode::IM_USED | StatusCode::NOT_MODIFIED => false,
        StatusCode::NOT_FOUND | StatusCode::GONE => true,
        _ => status.is_success() || status.is_redirection(),
    }
}

static OF_ONE_CLIENT: [HeaderName; 5] = [
    SET_COOKIE,
    WWW_AUTHENTICATE,
    PROXY_AUTHENTICATE,
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("proxy-authentication-info"),
];

/// Returns whether a response is a stream by its content type: events, parts that replace each other, lines or
/// sequences of JSON, gRPC.
pub(crate) fn is_stream(content_type: &HeaderValue) -> bool {
    const STREAMS: [&[u8]; 16] = [
        b"text/event-stream",
        b"multipart/x-mixed-replace",
        b"application/x-ndjson",
        b"application/ndjson",
        b"text/x-ndjson",
        b"application/x-ldjson",
        b"application/x-jsonl",
        b"application/jsonl",
        b"application/x-jsonlines",
        b"application/jsonlines",
        b"application/json-seq",
        b"application/stream+json",
        b"application/x-json-stream",
        b"application/connect+json",
        b"application/connect+proto",
        b"application/vnd.amazon.eventstream",
    ];
    const GRPC: &[u8] = b"application/grpc"; // with "+proto" and the like, and "-web"
    let essence = content_type
        .as_bytes()
        .split(|&byte| byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    STREAMS
        .iter()
        .any(|stream| essence.eq_ignore_ascii_case(stream))
        || essence
            .get(..GRPC.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
}

/// The freshness lifetime that a response states (RFC 9111, 4.2).
///
/// The crate `http-cache-semantics` 3.0 is not used: it does not distinguish a response without a lifetime from a
/// lifetime of 0, which decides whether the flight's ttl applies, and it treats every `proxy-revalidate` as a
/// lifetime of 0.
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
        let stated_age = headers
            .get(AGE)
            .and_then(|age| seconds(age.as_bytes()))
            .unwrap_or_default();
        let age = since_date.max(stated_age);
        let controls = if headers.contains_key(CACHE_CONTROL) {
            &["s-maxage", "max-age"][..]
        } else {
            &[]
        };
        let explicit = controls.iter().find_map(|name| {
            // If there are several values, the shortest applies. An invalid value counts as 0.
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
