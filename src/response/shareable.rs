//! Which responses may answer other requests.

use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, PROXY_AUTHENTICATE, SET_COOKIE, VARY,
    WWW_AUTHENTICATE,
};
use http::{HeaderValue, StatusCode, response};

#[cfg(test)]
mod tests;

/// Whether a response answers whoever else has asked the same. What [`Responses`](super::Responses) go by unless
/// told otherwise.
///
/// It does with a status that tells of what was asked for: any 2xx or 3xx, 404 and 410. It does not
///
/// * with any other status. It tells of the one request (401, 403, 429, and 400 too: a request with a broken header
///   field would fail all others), or it has failed (5xx), and the next request tries anew;
/// * with 206, 226 or 304, which answer ranges and conditions that others have not asked for;
/// * with `Set-Cookie` or fields of an authentication (`WWW-Authenticate`, `Authentication-Info` and the proxy's);
/// * with `Cache-Control: private`, `no-store` or `no-cache`, be it for some fields only, or with `Vary: *`;
/// * as gRPC, whose status is in the trailers, and as what is a stream by its type: `text/event-stream`,
///   `multipart/x-mixed-replace`, lines or sequences of JSON.
///
/// For how long it is served is the shorter of what the flight
/// [says](crate::single_flight::SingleFlightBuilder::ttl_with) and what it says itself (`s-maxage`, `max-age`,
/// `Expires`).
#[must_use]
pub fn is_shareable(response: &response::Parts) -> bool {
    tells_of_the_resource(response.status) && is_for_all(&response.headers)
}

/// Whether nothing in a response's header fields says that it is for one client, or an endless stream.
pub(super) fn is_for_all(headers: &HeaderMap) -> bool {
    !OF_ONE_CLIENT.iter().any(|field| headers.contains_key(field))
        && !any_directive(headers, &["private", "no-store", "no-cache"])
        && !items(headers, &VARY).any(|name| name == b"*")
        && !headers.get(CONTENT_TYPE).is_some_and(is_stream)
}

fn tells_of_the_resource(status: StatusCode) -> bool {
    match status {
        StatusCode::PARTIAL_CONTENT | StatusCode::IM_USED | StatusCode::NOT_MODIFIED => false,
        StatusCode::NOT_FOUND | StatusCode::GONE => true,
        _ => status.is_success() || status.is_redirection(),
    }
}

const OF_ONE_CLIENT: [HeaderName; 5] = [
    SET_COOKIE,
    WWW_AUTHENTICATE,
    PROXY_AUTHENTICATE,
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("proxy-authentication-info"),
];

fn is_stream(content_type: &HeaderValue) -> bool {
    const STREAMS: [&[u8]; 6] = [
        b"text/event-stream",
        b"multipart/x-mixed-replace",
        b"application/x-ndjson",
        b"application/ndjson",
        b"application/jsonl",
        b"application/json-seq",
    ];
    const GRPC: &[u8] = b"application/grpc"; // with "+proto" and the like, and "-web"
    let essence = content_type.as_bytes().split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    STREAMS.iter().any(|stream| essence.eq_ignore_ascii_case(stream))
        || essence.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
}

/// Whether `Cache-Control` has one of these, with an argument or without.
pub(super) fn any_directive(headers: &HeaderMap, directives: &[&str]) -> bool {
    directives.iter().any(|name| directive(headers, name).next().is_some())
}

/// The arguments of a directive of `Cache-Control`, for each time that it is there; `None`: it has none.
pub(super) fn directive<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = Option<&'a [u8]>> {
    headers.get_all(CACHE_CONTROL).iter().flat_map(move |value| arguments(value, name))
}

/// The same of one line.
pub(crate) fn arguments<'a>(value: &'a HeaderValue, name: &str) -> impl Iterator<Item = Option<&'a [u8]>> {
    list(value).filter_map(move |item| {
        let mut parts = item.splitn(2, |&byte| byte == b'=').map(<[u8]>::trim_ascii);
        parts.next()?.eq_ignore_ascii_case(name.as_bytes()).then(|| parts.next())
    })
}

/// The items of a field that is a list, in all its lines.
pub(crate) fn items<'a>(headers: &'a HeaderMap, field: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(field).iter().flat_map(list)
}

/// The items of one line of such a field.
pub(crate) fn list(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let items = value.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    items.filter(|item| !item.is_empty())
}
