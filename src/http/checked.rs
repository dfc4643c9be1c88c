//! Which requests may be answered with what others get, and what makes a difference between them.

use std::fmt;
use std::sync::Arc;

use http::header::{
    AUTHORIZATION, COOKIE, FORWARDED, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, PROXY_AUTHORIZATION, RANGE, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body::Body;

use super::shareable::{any_directive, items};
use crate::{Error, Key, KeyExtractor};

#[cfg(test)]
mod tests;

/// A request with one of these is about more than what is asked for.
static OF_ITS_OWN: [HeaderName; 9] = [
    AUTHORIZATION,
    PROXY_AUTHORIZATION,
    RANGE,
    IF_MATCH,
    IF_NONE_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    IF_RANGE,
    UPGRADE,
];

/// By these, services and frameworks choose the scheme, host, path or method that they answer for.
static REWRITES: [HeaderName; 24] = [
    HeaderName::from_static("cloudfront-forwarded-proto"),
    HeaderName::from_static("front-end-https"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-path"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-protocol"),
    HeaderName::from_static("x-forwarded-scheme"),
    HeaderName::from_static("x-forwarded-server"),
    HeaderName::from_static("x-forwarded-ssl"),
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-host"),
    HeaderName::from_static("x-http-host-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
    HeaderName::from_static("x-original-host"),
    HeaderName::from_static("x-original-method"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
    HeaderName::from_static("x-scheme"),
    HeaderName::from_static("x-url-scheme"),
];

/// The keys of [`http::single_flight`](super::single_flight): those of another extractor, of requests alone that may be
/// shared, and with all in them that makes a difference in HTTP itself.
///
/// A request has no key, so that it passes and is answered by itself,
///
/// * unless it is a GET or a HEAD without a body;
/// * where it may be private: with `Authorization`, `Proxy-Authorization` or `Cookie`, with a user in the URI, or with a
///   field that you have [named](Self::private_if);
/// * where it asks for something of its own: with `Range`, with conditions (`If-None-Match` and the other four), or with
///   `Upgrade`; or with `Cache-Control: no-store`;
/// * where it has several fields `Host`, or a host with spaces.
///
/// To the key it adds the method, the path and the query, the scheme where the URI has it, the host with its port as it was sent, in lower case,
/// `Host` where it is another than that of the URI, and the fields by which services choose what they answer for: `X-Forwarded-Host`, `-Port`, `-Prefix`, `-Proto`, `-Scheme`,
/// `-Server` and `-Ssl`, `Forwarded` but for its addresses, `X-Original-URL` and the like. So nobody can choose by them what
/// others get.
///
/// ```
/// use tower_distributed::{KeyExtractor, http::{Checked, path_and_query}};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let key = Checked::new(path_and_query()).private_if("x-api-key")?;
///
/// let request = http::Request::get("https://example.com/prices?of=tea");
/// assert_eq!(key.extract(&request.body(String::new()).unwrap()), Some("GET https example.com /prices?of=tea".into()));
///
/// let request = http::Request::get("https://example.com/prices?of=tea").header("x-api-key", "ann");
/// assert_eq!(key.extract(&request.body(String::new()).unwrap()), None);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Checked<K> {
    key: K,
    private_if: Vec<HeaderName>,
    ignored_cookies: Vec<Arc<str>>,
    allows_no_cache: bool,
}

impl<K> Checked<K> {
    /// Checks requests before another extractor names their key.
    #[must_use]
    pub fn new(key: K) -> Self {
        Self { key, private_if: Vec::new(), ignored_cookies: Vec::new(), allows_no_cache: false }
    }

    /// Requests with this header field are private as well: they are answered by themselves.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the name cannot be that of a field.
    pub fn private_if(mut self, field: &str) -> Result<Self, Error> {
        self.private_if.push(super::key::field_name(field)?);
        Ok(self)
    }

    /// Requests whose cookies all have one of these names are shared: no response depends on them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where a name cannot be that of a cookie (RFC 6265, 4.1.1).
    pub fn ignore_cookies<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        for name in names {
            let is_separator = |byte| b"()<>@,;:\\\"/[]?={}".contains(&byte);
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic() && !is_separator(byte)) {
                return Err(Error::invalid(format!(
                    "a cookie cannot be named {name:?} (see RFC 6265, 4.1.1)"
                )));
            }
            self.ignored_cookies.push(name.into());
        }
        Ok(self)
    }

    /// Answers requests with `Cache-Control: no-cache` by themselves, as their clients ask. Anybody can have the service
    /// handle any number of requests then. By default they are shared like all others.
    #[must_use]
    pub fn allow_no_cache(self) -> Self {
        Self { allows_no_cache: true, ..self }
    }

    fn may_be_shared<B: Body>(&self, request: &Request<B>) -> bool {
        let headers = request.headers();
        let directives: &[&str] =
            if self.allows_no_cache { &["no-store", "no-cache"] } else { &["no-store"] };
        matches!(*request.method(), Method::GET | Method::HEAD)
            && !OF_ITS_OWN.iter().chain(&self.private_if).any(|field| headers.contains_key(field))
            && headers.get_all(COOKIE).iter().all(|cookies| self.ignores(cookies))
            && !any_directive(headers, directives)
            && (request.body().is_end_stream() || request.body().size_hint().exact() == Some(0))
    }

    fn ignores(&self, cookies: &HeaderValue) -> bool {
        cookies.as_bytes().split(|&byte| byte == b';').all(|cookie| {
            let name = cookie.split(|&byte| byte == b'=').next().unwrap_or_default().trim_ascii();
            self.ignored_cookies.iter().any(|ignored| ignored.as_bytes() == name)
        })
    }
}

impl<B: Body, K: KeyExtractor<Request<B>>> KeyExtractor<Request<B>> for Checked<K> {
    fn extract(&self, request: &Request<B>) -> Option<Key> {
        if !self.may_be_shared(request) {
            return None;
        }
        let key = self.key.extract(request)?;
        let (uri, headers) = (request.uri(), request.headers());
        let mut hosts = headers.get_all(HOST).iter();
        let named = hosts.next().map(HeaderValue::as_bytes);
        let host =
            uri.authority().map(|authority| authority.as_str().as_bytes()).or(named).unwrap_or_default();
        if host.iter().any(|byte| matches!(byte, b' ' | b'@')) || hosts.next().is_some() {
            return None;
        }
        // As from a client that has a server asked for another host than the server's own.
        let other = named.filter(|other| !other.eq_ignore_ascii_case(host));
        let mut whole = Vec::with_capacity(24 + host.len() + key.as_bytes().len());
        whole.extend_from_slice(request.method().as_str().as_bytes());
        whole.push(b' ');
        whole.extend_from_slice(uri.scheme_str().unwrap_or_default().as_bytes());
        // No scheme has an asterisk, no host or target a space, and no field a line feed: so no two requests have one key.
        let at = whole.len();
        whole.push(b' ');
        whole.extend(host.iter().map(u8::to_ascii_lowercase));
        whole.push(b' ');
        if write_rewrites(headers, other, &mut whole) {
            whole.insert(at, b'*');
        }
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).as_bytes();
        whole.extend_from_slice(target);
        if key.as_bytes() != target {
            whole.push(b' ');
            whole.extend_from_slice(key.as_bytes());
        }
        Some(whole.into())
    }
}

/// Whether a request tells its scheme, so that it is in its key.
pub(super) fn tells_scheme<B>(request: &Request<B>) -> bool {
    const TELLS: [&str; 4] =
        ["x-forwarded-proto", "x-forwarded-scheme", "x-forwarded-ssl", "front-end-https"];
    let headers = request.headers();
    let is_proto = |item: &[u8]| item.to_ascii_lowercase().windows(6).any(|part| part == b"proto=");
    request.uri().scheme().is_some()
        || TELLS.iter().any(|field| headers.contains_key(*field))
        || items(headers, &FORWARDED).any(is_proto)
}

/// Whether a pair of `Forwarded` tells an address, and nothing else by whatever way it is read.
fn is_address(pair: &[u8]) -> bool {
    let value = [&b"for="[..], b"by="].iter().find_map(|name| {
        let start = pair.get(..name.len())?;
        start.eq_ignore_ascii_case(name).then(|| &pair[name.len()..])
    });
    value.is_some_and(|value| {
        value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"\"[]:._-".contains(byte))
    })
}

/// Writes the fields by which services choose what they answer for; whether there are any.
fn write_rewrites(headers: &HeaderMap, other_host: Option<&[u8]>, out: &mut Vec<u8>) -> bool {
    let before = out.len();
    if let Some(host) = other_host {
        out.extend_from_slice(b"host:");
        out.extend_from_slice(host);
        out.push(b'\n');
    }
    for name in &REWRITES {
        for value in headers.get_all(name) {
            out.extend_from_slice(name.as_str().as_bytes());
            out.push(b':');
            out.extend_from_slice(value.as_bytes());
            out.push(b'\n');
        }
    }
    for element in items(headers, &FORWARDED) {
        for pair in element.split(|&byte| byte == b';').map(<[u8]>::trim_ascii) {
            if !is_address(pair) {
                out.extend_from_slice(b"forwarded:");
                out.extend_from_slice(pair);
                out.push(b'\n');
            }
        }
    }
    if out.len() > before {
        out.push(b'\n');
    }
    out.len() > before
}

impl<K> fmt::Debug for Checked<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checked")
            .field("private_if", &self.private_if)
            .field("ignored_cookies", &self.ignored_cookies)
            .finish_non_exhaustive()
    }
}
