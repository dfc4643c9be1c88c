//! Header fields that others must not get, and `Content-Length`.

use std::time::Duration;

use http::header::{
    AGE, CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use super::lists::items;

/// Returns whether `Content-Length` is absent or equals `length`.
pub(crate) fn has_length(headers: &HeaderMap, length: usize) -> bool {
    let told = |value: &HeaderValue| value.to_str().ok()?.parse().ok();
    headers
        .get_all(CONTENT_LENGTH)
        .iter()
        .all(|value| told(value) == Some(length))
}

/// Removes the fields of a response, or of its trailers, that apply to one connection (RFC 9110, 7.6.1) or to one exchange:
/// how much is left of a limit, when to come again, how old the response is, how long it took, and which request it was for.
pub(crate) fn for_others(mut headers: HeaderMap) -> HeaderMap {
    static HOP_BY_HOP: [HeaderName; 10] = [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        PROXY_AUTHENTICATE,
        HeaderName::from_static("proxy-authentication-info"),
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    static OF_ONE_EXCHANGE: [HeaderName; 7] = [
        AGE,
        RETRY_AFTER,
        HeaderName::from_static("idempotency-replayed"),
        HeaderName::from_static("server-timing"),
        HeaderName::from_static("traceresponse"),
        HeaderName::from_static("x-correlation-id"),
        HeaderName::from_static("x-request-id"),
    ];
    let named: Vec<_> = items(&headers, &CONNECTION)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .collect();
    let is_of_one = |name: &&HeaderName| {
        HOP_BY_HOP.contains(name)
            || OF_ONE_EXCHANGE.contains(name)
            || named.contains(name)
            || is_limit(name)
    };
    // Most responses have no such field, and to compare names costs less than to hash them.
    let of_one: Vec<_> = headers.keys().filter(is_of_one).cloned().collect();
    for name in of_one {
        headers.remove(name);
    }
    headers
}

/// Whether a field tells how much is left of a limit: `RateLimit`, `X-RateLimit-Remaining`, `X-Rate-Limit-Reset`,
/// `anthropic-ratelimit-requests-limit` and the like.
fn is_limit(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.contains("ratelimit") || name.contains("rate-limit")
}

/// Whole seconds, rounded up: nobody is told to come too early.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
