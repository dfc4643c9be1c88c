//! Hop-by-hop header fields and `Content-Length`.

use std::time::Duration;

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use super::lists::items;

/// Returns whether `Content-Length` is absent or equals `length`.
pub(crate) fn has_length(headers: &HeaderMap, length: usize) -> bool {
    let told = |value: &HeaderValue| value.to_str().ok()?.parse().ok();
    headers.get_all(CONTENT_LENGTH).iter().all(|value| told(value) == Some(length))
}

/// Removes the fields that apply to one connection only (RFC 9110, 7.6.1).
pub(crate) fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
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
    let named: Vec<_> =
        items(&headers, &CONNECTION).filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
    // Most responses have no such field, and to compare names costs less than to hash them.
    if headers.keys().any(|name| HOP_BY_HOP.contains(name) || named.contains(name)) {
        for name in named.iter().chain(&HOP_BY_HOP) {
            headers.remove(name);
        }
    }
    headers
}

/// Whole seconds, rounded up: nobody is told to come too early.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
