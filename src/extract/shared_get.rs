//! Which requests may be answered with what others get, and what makes a difference between them.

use std::fmt;
use std::sync::Arc;

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body::Body;
use smallvec::SmallVec;

use super::header::{cookie_name, field_name};
use super::{PathAndQuery, combinators, path_and_query};
use crate::response::{arguments, items, list};
use crate::{Error, Extracted, Key, KeyExtractor};

#[cfg(test)]
mod tests;

/// By these, services and frameworks choose the scheme, host, path or method that they answer for.
const REWRITES: [&str; 24] = [
    "cloudfront-forwarded-proto",
    "front-end-https",
    "x-forwarded-host",
    "x-forwarded-path",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-protocol",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-forwarded-uri",
    "x-host",
    "x-http-host-override",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
];

/// What a header field of a request says of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It is about more than what is asked for.
    OfItsOwn,
    Cookie,
    CacheControl,
    Host,
    Forwarded,
    Rewrite,
    None,
}

impl Role {
    fn of(field: &HeaderName) -> Self {
        match field.as_str() {
            "authorization"
            | "proxy-authorization"
            | "range"
            | "if-match"
            | "if-none-match"
            | "if-modified-since"
            | "if-unmodified-since"
            | "if-range"
            | "upgrade" => Self::OfItsOwn,
            "cookie" => Self::Cookie,
            "cache-control" => Self::CacheControl,
            "host" => Self::Host,
            "forwarded" => Self::Forwarded,
            name if REWRITES.contains(&name) => Self::Rewrite,
            _ => Self::None,
        }
    }
}

/// What makes a difference between requests, of their header fields.
#[derive(Default)]
struct Differences<'a> {
    hosts: SmallVec<[&'a [u8]; 1]>,
    /// By name, and then as they were sent.
    rewrites: SmallVec<[(&'a str, &'a [u8]); 4]>,
}

/// The cache key of a GET, for [`web::single_flight`](crate::web::single_flight): with all in it that makes a difference
/// in HTTP itself, and for requests alone whose responses may be shared.
///
/// A request has no key, so that it passes and is answered by itself,
///
/// * unless it is a GET or a HEAD without a body;
/// * where it may be private: with `Authorization`, `Proxy-Authorization` or `Cookie`, with a user in the URI, or with a
///   field that you have [named](SharedGet::private_if);
/// * where it asks for something of its own: with `Range`, with conditions (`If-None-Match` and the other four), or with
///   `Upgrade`; or with `Cache-Control: no-store`;
/// * where it has several fields `Host`, or a host with spaces.
///
/// To the key it adds the method, the path and the query, the scheme where the URI has it, the host with its port as it was
/// sent, in lower case, `Host` where it is another than that of the URI, and the fields by which services choose what they
/// answer for: `X-Forwarded-Host`, `-Port`, `-Prefix`, `-Proto`, `-Scheme`, `-Server` and `-Ssl`, `Forwarded` but for its
/// addresses, `X-Original-URL` and the like. So nobody can choose by them what others get.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::shared_get};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let key = shared_get().private_if("x-api-key")?;
///
/// let request = http::Request::get("https://example.com/prices?of=tea");
/// assert_eq!(key.extract(&request.body(String::new()).unwrap()), Some("GET https example.com /prices?of=tea".into()));
///
/// let request = http::Request::get("https://example.com/prices?of=tea").header("x-api-key", "ann");
/// assert_eq!(key.extract(&request.body(String::new()).unwrap()), None);
/// # Ok(()) }
/// ```
///
/// In routers that axum nests the key has the whole path with the feature `axum`; see [`path_and_query`] for what to do
/// without it.
#[must_use]
pub fn shared_get() -> SharedGet {
    SharedGet::new(path_and_query())
}

/// See [`shared_get`].
#[derive(Clone)]
pub struct SharedGet<K = PathAndQuery> {
    key: K,
    private_if: Vec<HeaderName>,
    ignored_cookies: Vec<Arc<str>>,
    allows_no_cache: bool,
}

impl<K> SharedGet<K> {
    /// By another extractor, whose key is added, of requests that may be shared: `SharedGet::new((path_and_query(), tenant))`.
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
        self.private_if.push(field_name(field)?);
        Ok(self)
    }

    /// Requests whose cookies all have one of these names are shared: no response depends on them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where a name cannot be that of a cookie (RFC 6265, 4.1.1).
    pub fn ignore_cookies<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        for name in names {
            self.ignored_cookies.push(cookie_name(name)?.into());
        }
        Ok(self)
    }

    /// Answers requests with `Cache-Control: no-cache` by themselves, as their clients ask. Anybody can have the service
    /// handle any number of requests then. By default they are shared like all others.
    #[must_use]
    pub fn allow_no_cache(self) -> Self {
        Self { allows_no_cache: true, ..self }
    }

    /// What of the header fields belongs into the key; `None`: they say that the request is not to be shared.
    fn differences<'a>(&self, headers: &'a HeaderMap) -> Option<Differences<'a>> {
        let mut found = Differences::default();
        for (field, value) in headers {
            match Role::of(field) {
                Role::OfItsOwn => return None,
                Role::Cookie if !self.ignores(value) => return None,
                Role::CacheControl if self.asks_alone(value) => return None,
                Role::Host => found.hosts.push(value.as_bytes()),
                Role::Rewrite => found.rewrites.push((field.as_str(), value.as_bytes())),
                Role::Forwarded => {
                    let pairs = list(value).flat_map(|element| element.split(|&byte| byte == b';'));
                    let told = pairs.map(<[u8]>::trim_ascii).filter(|pair| !is_address(pair));
                    found.rewrites.extend(told.map(|pair| ("forwarded", pair)));
                }
                Role::Cookie | Role::CacheControl | Role::None => {}
            }
        }
        found.rewrites.sort_by_key(|(field, _)| *field);
        let is_private = self.private_if.iter().any(|field| headers.contains_key(field));
        (!is_private).then_some(found)
    }

    /// Whether one of the fields `Cache-Control` asks for an answer of its own.
    fn asks_alone(&self, value: &HeaderValue) -> bool {
        let has = |directive| arguments(value, directive).next().is_some();
        has("no-store") || self.allows_no_cache && has("no-cache")
    }

    fn ignores(&self, cookies: &HeaderValue) -> bool {
        cookies.as_bytes().split(|&byte| byte == b';').all(|cookie| {
            let name = cookie.split(|&byte| byte == b'=').next().unwrap_or_default().trim_ascii();
            self.ignored_cookies.iter().any(|ignored| ignored.as_bytes() == name)
        })
    }
}

/// What of a request is in its key, whatever the inner extractor says.
struct Shared<'a> {
    method: &'a Method,
    scheme: &'a str,
    host: &'a [u8],
    /// `Host` where it is another than `host`, and the fields that choose what is answered.
    rewrites: SmallVec<[(&'a str, &'a [u8]); 4]>,
    target: &'a [u8],
}

impl<K> SharedGet<K> {
    /// `None`: the request must not be shared.
    fn shared<'a, B: Body>(&self, request: &'a Request<B>) -> Option<Shared<'a>> {
        let (method, uri, body) = (request.method(), request.uri(), request.body());
        let is_empty = || body.is_end_stream() || body.size_hint().exact() == Some(0);
        if !matches!(*method, Method::GET | Method::HEAD) || !is_empty() {
            return None;
        }
        let Differences { hosts, mut rewrites } = self.differences(request.headers())?;
        let named = hosts.first().copied();
        let host =
            uri.authority().map(|authority| authority.as_str().as_bytes()).or(named).unwrap_or_default();
        if host.iter().any(|byte| matches!(byte, b' ' | b'@')) || hosts.len() > 1 {
            return None;
        }
        // As from a client that has a server asked for another host than the server's own.
        if let Some(other) = named.filter(|other| !other.eq_ignore_ascii_case(host)) {
            rewrites.insert(0, ("host", other));
        }
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).as_bytes();
        Some(Shared { method, scheme: uri.scheme_str().unwrap_or_default(), host, rewrites, target })
    }
}

impl Shared<'_> {
    /// The whole key, with that of the inner extractor.
    ///
    /// No scheme has an asterisk, no host or target a space, and no field a line feed: so no two requests have one key.
    fn write(&self, whole: &mut impl Extend<u8>, key: &[u8]) {
        let Self { method, scheme, host, rewrites, target } = self;
        let (star, end): (&[u8], &[u8]) = if rewrites.is_empty() { (b"", b"") } else { (b"*", b"\n") };
        let mut write = |parts: &[&[u8]]| parts.iter().for_each(|part| whole.extend(part.iter().copied()));
        write(&[method.as_str().as_bytes(), b" ", scheme.as_bytes(), star, b" "]);
        write(&[&host.to_ascii_lowercase(), b" "]);
        for (field, value) in rewrites {
            write(&[field.as_bytes(), b":", value, b"\n"]);
        }
        write(&[end, target]);
        if key != *target {
            write(&[b" ", key]);
        }
    }
}

impl<B: Body, K: KeyExtractor<Request<B>>> KeyExtractor<Request<B>> for SharedGet<K> {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let Some(shared) = self.shared(request) else { return Extracted::NONE };
        match self.key.extract(request) {
            Extracted::Ready(key) => Extracted::Ready(
                key.map(|key| key.map(|key| Key::written(|whole| shared.write(whole, key.as_bytes())))),
            ),
            Extracted::Pending(key) => {
                let mut whole = Vec::new();
                shared.write(&mut whole, shared.target);
                Extracted::Pending(key).map(move |key| Key::of([&whole, key.as_bytes()]))
            }
        }
    }
}

/// Whether a request tells its scheme, so that it is in its key.
pub(crate) fn tells_scheme<B>(request: &Request<B>) -> bool {
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

combinators!(SharedGet<K>);

impl<K> fmt::Debug for SharedGet<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedGet")
            .field("private_if", &self.private_if)
            .field("ignored_cookies", &self.ignored_cookies)
            .finish_non_exhaustive()
    }
}
