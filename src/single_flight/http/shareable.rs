//! Decides which responses may be shared with other requests.

use http::header::{
    CONTENT_TYPE, HeaderMap, HeaderName, PROXY_AUTHENTICATE, SET_COOKIE, VARY, WWW_AUTHENTICATE,
};
use http::{HeaderValue, StatusCode, response};

use crate::http::lists::{any_directive, items};

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
    tells_of_the_resource(response.status) && is_for_all(&response.headers)
}

/// Returns whether no header field says that the response is for one client or is an endless stream.
pub(crate) fn is_for_all(headers: &HeaderMap) -> bool {
    // To compare a few names costs less than to hash each of these.
    !headers.keys().any(|field| OF_ONE_CLIENT.contains(field))
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

static OF_ONE_CLIENT: [HeaderName; 5] = [
    SET_COOKIE,
    WWW_AUTHENTICATE,
    PROXY_AUTHENTICATE,
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("proxy-authentication-info"),
];

/// Returns whether a response is a stream by its content type: events, parts that replace each other, lines or sequences of
/// JSON, gRPC.
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
