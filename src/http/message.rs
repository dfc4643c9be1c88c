//! Helpers for HTTP messages: lists in header fields, the fields that apply to one connection or one exchange, and
//! `Content-Length`. Also the count of the bytes of bodies that are held in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::header::{
    AGE, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Returns whether `Cache-Control` has one of these directives, with or without an argument.
pub(crate) fn any_directive(headers: &HeaderMap, directives: &[&str]) -> bool {
    let has_any = |value| {
        directives
            .iter()
            .any(|name| arguments(value, name).next().is_some())
    };
    headers.get_all(CACHE_CONTROL).iter().any(has_any)
}

/// Returns the argument of each occurrence of a `Cache-Control` directive. `None`: the directive has no argument.
pub(crate) fn directive<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> impl Iterator<Item = Option<&'a [u8]>> {
    headers
        .get_all(CACHE_CONTROL)
        .iter()
        .flat_map(move |value| arguments(value, name))
}

/// Returns the same for one line.
pub(crate) fn arguments<'a>(
    value: &'a HeaderValue,
    name: &str,
) -> impl Iterator<Item = Option<&'a [u8]>> {
    list(value).filter_map(move |item| {
        let mut parts = item.splitn(2, |&byte| byte == b'=').map(<[u8]>::trim_ascii);
        parts
            .next()?
            .eq_ignore_ascii_case(name.as_bytes())
            .then(|| parts.next())
    })
}

/// Returns the items of a list field, from all its lines.
pub(crate) fn items<'a>(
    headers: &'a HeaderMap,
    field: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(field).iter().flat_map(list)
}

/// Returns the items of one line of a list field.
pub(crate) fn list(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let items = value
        .as_bytes()
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii);
    items.filter(|item| !item.is_empty())
}

/// Returns whether `Content-Length` is absent or equals `length`.
pub(crate) fn has_length(headers: &HeaderMap, length: usize) -> bool {
    let stated = |value: &HeaderValue| value.to_str().ok()?.parse().ok();
    headers
        .get_all(CONTENT_LENGTH)
        .iter()
        .all(|value| stated(value) == Some(length))
}

/// Removes the fields of a response, or of its trailers, that apply to one connection (RFC 9110, 7.6.1) or to one
/// exchange: the rest of a limit, when to retry, the age of the response, the time it took, and the id of its request.
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
    // Most responses have no such field, and comparing names costs less than hashing them.
    let of_one: Vec<_> = headers.keys().filter(is_of_one).cloned().collect();
    for name in of_one {
        headers.remove(name);
    }
    headers
}

/// Whether a field states how much is left of a limit: `RateLimit`, `X-RateLimit-Remaining`, `X-Rate-Limit-Reset`,
/// `anthropic-ratelimit-requests-limit` and the like.
fn is_limit(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.contains("ratelimit") || name.contains("rate-limit")
}

/// Whole seconds, rounded up, so that no client retries too early.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// The bytes of all bodies that are held in memory, and their bound.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) most: usize,
    bytes: Arc<AtomicUsize>,
}

/// The counted bytes of one body. Dropping this subtracts them.
#[derive(Debug)]
pub(crate) struct Taken {
    of: Reading,
    bytes: usize,
}

impl Reading {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            bytes: Arc::default(),
        }
    }

    /// The same count with a lower bound.
    pub(crate) fn up_to(&self, most: usize) -> Self {
        Self {
            most,
            bytes: Arc::clone(&self.bytes),
        }
    }

    pub(crate) fn begin(&self) -> Taken {
        Taken {
            of: self.clone(),
            bytes: 0,
        }
    }
}

impl Taken {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts more bytes. Returns whether all bodies are within the bound.
    pub(crate) fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.of.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.of.most
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
