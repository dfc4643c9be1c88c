//! The cache key of requests whose responses may be shared.

use std::sync::Arc;

use http::header::FORWARDED;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body::Body;
use smallvec::SmallVec;

use crate::error::Error;
use crate::http::extract::parameter::{cookie_name, field_name, split};
use crate::http::extract::path::{Path, path_and_query};
use crate::http::message::{arguments, items, list};
use crate::key::Key;
use crate::layers::extract::Extractor;
use crate::layers::key::{Extracted, KeyExtractor};

#[cfg(test)]
mod tests;

/// Header fields from which services and frameworks take the scheme, host, path or method of a request.
const REWRITES: [&str; 27] = [
    "cf-visitor",
    "cloudfront-forwarded-proto",
    "fastly-ssl",
    "front-end-https",
    "x-envoy-original-path",
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

/// Header fields that identify no user on whom a response could depend, except as its `Vary` states: the fields that
/// browsers, HTTP clients, proxies, CDNs and tracing send with any request.
#[rustfmt::skip]
const HARMLESS: [&str; 149] = [
    "accept", "accept-charset", "accept-encoding", "accept-language", "access-control-request-headers",
    "access-control-request-method", "akamai-origin-hop", "alt-used", "amp-cache-transform",
    "amz-sdk-invocation-id", "amz-sdk-request", "b3", "cdn-loop", "cf-connecting-ip",
    "cf-connecting-ipv6", "cf-ew-via", "cf-ipcity", "cf-ipcontinent", "cf-ipcountry", "cf-iplatitude",
    "cf-iplongitude", "cf-metro-code", "cf-postal-code", "cf-pseudo-ipv4", "cf-ray", "cf-region",
    "cf-region-code", "cf-timezone", "cf-warp-tag-id", "cf-worker", "client-ip", "connection",
    "content-encoding", "content-language", "content-length", "content-type", "correlation-id", "date",
    "device-memory", "dnt", "downlink", "dpr", "early-data", "ect", "elastic-apm-traceparent", "expect",
    "fastly-client", "fastly-client-ip", "fastly-ff", "fastly-orig-accept-encoding", "fastly-temp-xff",
    "fly-client-ip", "fly-region", "fly-request-id", "grpc-accept-encoding", "grpc-encoding",
    "grpc-timeout", "grpc-trace-bin", "http2-settings", "keep-alive", "max-forwards", "newrelic", "origin",
    "pragma", "priority", "proxy-connection", "purpose", "referer", "request-id", "rtt", "save-data",
    "sec-gpc", "sec-purpose", "sentry-trace", "te", "trace-id", "traceparent", "tracestate", "trailer",
    "transfer-encoding", "true-client-ip", "uber-trace-id", "upgrade-insecure-requests", "user-agent",
    "via", "viewport-width", "want-content-digest", "want-digest", "want-repr-digest", "width",
    "x-akamai-edgescape", "x-amz-cf-id", "x-amz-user-agent", "x-amzn-trace-id", "x-appengine-city",
    "x-appengine-citylatlong", "x-appengine-country", "x-appengine-region", "x-appengine-request-log-id",
    "x-arr-log-id", "x-azure-clientip", "x-azure-fdid", "x-azure-ref", "x-azure-requestchain",
    "x-azure-socketip", "x-bluecoat-via", "x-client-ip", "x-cloud-trace-context", "x-cluster-client-ip",
    "x-correlation-id", "x-dns-prefetch-control", "x-do-connecting-ip", "x-envoy-attempt-count",
    "x-envoy-decorator-operation", "x-envoy-expected-rq-timeout-ms", "x-envoy-external-address",
    "x-envoy-internal", "x-envoy-peer-metadata", "x-envoy-peer-metadata-id", "x-forwarded",
    "x-forwarded-by", "x-forwarded-for", "x-goog-api-client", "x-grpc-web", "x-moz", "x-newrelic-id",
    "x-newrelic-transaction", "x-nf-client-connection-ip", "x-nf-request-id", "x-original-forwarded-for",
    "x-ot-span-context", "x-purpose", "x-queue-start", "x-real-ip", "x-render-origin-server",
    "x-request-id", "x-request-start", "x-requested-with", "x-trace-id", "x-varnish",
    "x-vercel-deployment-url", "x-vercel-id", "x-vercel-ip-city", "x-vercel-ip-country",
    "x-vercel-ip-country-region", "x-vercel-ip-latitude", "x-vercel-ip-longitude", "x-vercel-ip-timezone",
    "x-wap-profile",
];

/// The prefixes of the names of such fields.
const HARMLESS_PREFIXES: [&str; 6] = [
    "cloudfront-is-",
    "cloudfront-viewer-",
    "sec-ch-",
    "sec-fetch-",
    "x-b3-",
    "x-datadog-",
];

/// Whether a field is in one of these lists.
fn is_harmless(name: &str) -> bool {
    HARMLESS.binary_search(&name).is_ok()
        || HARMLESS_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// The meaning of a header field for sharing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The response depends on more than the target, so the request is not shared.
    OfItsOwn,
    /// Unknown: it may identify a user.
    Unknown,
    Cookie,
    CacheControl,
    Host,
    Forwarded,
    Rewrite,
    Harmless,
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
            name if is_harmless(name) => Self::Harmless,
            _ => Self::Unknown,
        }
    }
}

/// Returns an extractor for the cache key of a GET, for [`web::single_flight`](crate::web::single_flight). Only
/// requests whose responses may be shared have a key.
///
/// A request without a key is handled alone. A request has no key if
///
/// * it is not a GET or HEAD, or it has a body;
/// * it may be private: it has `Authorization`, `Proxy-Authorization`, `Cookie` (except
///   [ignored](SharedGet::ignore_cookies) ones), a user in the URI, a field that is not known to be harmless (below),
///   or a field that you [named](SharedGet::private_if);
/// * it requests an individual response: it has `Range`, a condition (`If-None-Match`, `If-Match`, `If-Modified-Since`,
///   `If-Unmodified-Since`, `If-Range`), `Upgrade`, or `Cache-Control: no-store` (`no-cache` too with
///   [`allow_no_cache`](SharedGet::allow_no_cache));
/// * it has several `Host` fields, or a host with spaces.
///
/// # Fields that are harmless
///
/// No list of the fields that identify a user can be complete. So **any field that is not known to be harmless makes a
/// request private**: `X-Token`, `X-Tenant-Id`, a field of your own. The harmless fields are those that browsers, HTTP
/// clients, proxies, CDNs and tracing add to any request: `Accept` and the like, `User-Agent`, `Referer`, `Origin`,
/// `DNT`, `Priority`, `Sec-Fetch-*`, `Sec-CH-*` and other client hints, `Content-Type`, `X-Requested-With`; `Via`,
/// `X-Forwarded-For`, `X-Real-IP`, the `CF-*`, `CloudFront-*`, `Fastly-*`, `Fly-*` and `X-Vercel-*` fields of
/// addresses, places and requests; `traceparent`, `B3`, `X-Request-ID` and the like. All requests of browsers without
/// cookies, of curl and of the usual libraries are shared, also behind a CDN: the test `usual_requests_are_shared`
/// covers them.
///
/// If no response depends on a field of your own, such as a version of your app, name it with
/// [`ignore_field`](SharedGet::ignore_field). Also name a field that is part of the key by [`new`](SharedGet::new). If
/// responses of your service depend on an address or a place without a `Vary`, name that field with
/// [`private_if`](SharedGet::private_if). Client certificates and addresses of connections are not visible to the
/// extractor.
///
/// # The key
///
/// The key consists of the method, the path and the query, the scheme if the URI has one, the host in lower case
/// with its port as it was sent, `Host` if it differs from the host of the URI, and the fields from which services
/// take the target of a request: `X-Forwarded-Host`, `-Port`, `-Prefix`, `-Proto`, `-Scheme`, `-Server` and `-Ssl`,
/// `Forwarded` without its addresses, `X-Original-URL` and the like. So a client cannot use these fields to change
/// the response of other clients. [`Responses`](crate::response::Responses) separates requests by the fields that a
/// response names in `Vary`.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::shared_get};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let key = shared_get().ignore_field("x-app-version")?;
///
/// let get = || http::Request::get("https://example.com/prices?of=tea").header("x-app-version", "7");
/// assert_eq!(key.extract(&get().body(String::new()).unwrap()), Some("GET https example.com /prices?of=tea".into()));
///
/// for field in ["x-session", "x-api-key"] {
///     assert_eq!(key.extract(&get().header(field, "ann").body(String::new()).unwrap()), None);
/// }
/// # Ok(()) }
/// ```
///
/// In nested axum routers the key has the whole path if the feature `axum` is enabled. See [`path_and_query`] for
/// nested routers without that feature.
#[must_use]
pub fn shared_get() -> SharedGet {
    SharedGet::new(path_and_query())
}

/// The extractor that [`shared_get`] returns. To combine it with other extractors, add them with
/// [`new`](SharedGet::new), or convert it to an [`Extractor`] with [`by`](crate::extract::by).
#[derive(Clone)]
pub struct SharedGet<K = Extractor<Path>> {
    key: K,
    private_if: Vec<HeaderName>,
    ignored_fields: Vec<HeaderName>,
    ignored_cookies: Vec<Arc<str>>,
    allows_no_cache: bool,
}

debug!(SharedGet<K>, private_if, ignored_fields, ignored_cookies);

impl<K> SharedGet<K> {
    /// Creates an extractor that adds the key of another extractor: `SharedGet::new((path_and_query(), tenant))`. A
    /// request for which the other extractor returns `None` is not shared. A request without a part of that key is
    /// refused, unless the part is [`optional`](Extractor::optional). A field that the other extractor reads and that
    /// is not [known to be harmless](shared_get#fields-that-are-harmless) makes a request private nevertheless: name it
    /// with [`ignore_field`](Self::ignore_field) as well.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed::KeyExtractor;
    /// use tower_distributed::extract::{SharedGet, header, path_and_query};
    ///
    /// let key = SharedGet::new((path_and_query(), header("accept-language")?.plain().optional()));
    /// let get = |language| Request::get("/prices").header("accept-language", language).body(String::new()).unwrap();
    /// assert_ne!(format!("{:?}", key.extract(&get("de"))), format!("{:?}", key.extract(&get("fr"))));
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    #[must_use]
    pub fn new(key: K) -> Self {
        Self {
            key,
            private_if: Vec::new(),
            ignored_fields: Vec::new(),
            ignored_cookies: Vec::new(),
            allows_no_cache: false,
        }
    }

    /// Handles requests with this header field alone, because they are private, although the field is [known to be
    /// harmless](shared_get#fields-that-are-harmless) in general.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `field` is not a valid field name.
    pub fn private_if(mut self, field: &str) -> Result<Self, Error> {
        self.private_if.push(field_name(field)?);
        Ok(self)
    }

    /// Shares requests that have this field, although it is not [known to be
    /// harmless](shared_get#fields-that-are-harmless). No response may depend on it, unless the field is part of the
    /// key, or the responses name it in `Vary`.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed::{KeyExtractor, extract::shared_get};
    ///
    /// let key = shared_get().ignore_field("x-user-agent")?; // the client library, in gRPC-Web
    /// let get = Request::get("/prices").header("x-user-agent", "grpc-web-javascript/0.1").body(String::new()).unwrap();
    /// assert_ne!(key.extract(&get), None);
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `field` is not a valid field name, or one that can never be ignored, such
    /// as `Authorization`, `Range`, `Host` and `X-Forwarded-Host`. For `Cookie` there is
    /// [`ignore_cookies`](Self::ignore_cookies).
    pub fn ignore_field(mut self, field: &str) -> Result<Self, Error> {
        let field = field_name(field)?;
        if !matches!(Role::of(&field), Role::Unknown | Role::Harmless) {
            return Err(Error::invalid(format!(
                "ignore_field takes a field on which no response depends, is {:?}: authentication, cookies, ranges, conditions \
                 and the target of a request can never be ignored",
                field.as_str()
            )));
        }
        self.ignored_fields.push(field);
        Ok(self)
    }

    /// Ignores cookies with these names: a request is shared if it has no other cookies. No response may depend on
    /// them.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed::{KeyExtractor, extract::shared_get};
    ///
    /// let key = shared_get().ignore_cookies(["theme", "_ga"])?;
    /// let get = |cookies| Request::get("/prices").header("cookie", cookies).body(String::new()).unwrap();
    /// assert_ne!(key.extract(&get("theme=dark")), None);
    /// assert_eq!(key.extract(&get("theme=dark; session=7")), None);
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if a name is not a valid cookie name (RFC 6265, 4.1.1).
    pub fn ignore_cookies<'a>(
        mut self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Error> {
        for name in names {
            self.ignored_cookies.push(cookie_name(name)?.into());
        }
        Ok(self)
    }

    /// Handles requests with `Cache-Control: no-cache` alone. Then any client can make the service handle any
    /// number of requests. Default: such requests are shared like all others.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed::{KeyExtractor, extract::shared_get};
    ///
    /// let reload = Request::get("/prices").header("cache-control", "no-cache").body(String::new()).unwrap();
    /// assert_ne!(shared_get().extract(&reload), None);
    /// assert_eq!(shared_get().allow_no_cache().extract(&reload), None);
    /// ```
    #[must_use]
    pub fn allow_no_cache(self) -> Self {
        Self {
            allows_no_cache: true,
            ..self
        }
    }

    /// Returns whether a `Cache-Control` field requests an individual response.
    fn asks_alone(&self, value: &HeaderValue) -> bool {
        let has = |directive| arguments(value, directive).next().is_some();
        has("no-store") || self.allows_no_cache && has("no-cache")
    }

    fn ignores(&self, cookies: &HeaderValue) -> bool {
        cookies
            .as_bytes()
            .split(|&byte| byte == b';')
            .all(|cookie| {
                let name = cookie
                    .split(|&byte| byte == b'=')
                    .next()
                    .unwrap_or_default()
                    .trim_ascii();
                self.ignored_cookies
                    .iter()
                    .any(|ignored| ignored.as_bytes() == name)
            })
    }
}

/// The parts of a request that are in every key.
struct Shared<'a> {
    method: &'a Method,
    uri: &'a Uri,
    host: &'a [u8],
    /// `Host` if it differs from `host`, and the fields from which services take the target, sorted by name. Values of
    /// one name in the order in which they were sent.
    rewrites: SmallVec<[(&'a str, &'a [u8]); 4]>,
}

impl<K> SharedGet<K> {
    /// Returns the parts for the key. `None`: the request must not be shared.
    fn shared<'a, B: Body>(&self, request: &'a Request<B>) -> Option<Shared<'a>> {
        let method = request.method();
        let uri = request.uri();
        let headers = request.headers();
        let body = request.body();
        let is_empty = || body.is_end_stream() || body.size_hint().exact() == Some(0);
        let is_private = || {
            self.private_if
                .iter()
                .any(|field| headers.contains_key(field))
        };
        if !matches!(*method, Method::GET | Method::HEAD) || !is_empty() || is_private() {
            return None;
        }
        let mut named = None;
        let mut rewrites = SmallVec::new();
        for (field, value) in headers {
            match Role::of(field) {
                Role::OfItsOwn => return None,
                Role::Unknown if !self.ignored_fields.contains(field) => return None,
                Role::Cookie if !self.ignores(value) => return None,
                Role::CacheControl if self.asks_alone(value) => return None,
                Role::Host if named.replace(value.as_bytes()).is_some() => return None,
                Role::Rewrite => rewrites.push((field.as_str(), value.as_bytes())),
                Role::Forwarded => {
                    let pairs = list(value).flat_map(|element| element.split(|&byte| byte == b';'));
                    let of_target = pairs
                        .map(<[u8]>::trim_ascii)
                        .filter(|pair| !is_address(pair));
                    rewrites.extend(of_target.map(|pair| ("forwarded", pair)));
                }
                Role::Unknown | Role::Cookie | Role::CacheControl | Role::Host | Role::Harmless => {
                }
            }
        }
        rewrites.sort_by_key(|(field, _)| *field);
        let host = uri
            .authority()
            .map(|authority| authority.as_str().as_bytes());
        let host = host.or(named).unwrap_or_default();
        if host.iter().any(|byte| matches!(byte, b' ' | b'@')) {
            return None;
        }
        // A client can send a `Host` that differs from the host of the URI, so both are in the key.
        if let Some(other) = named.filter(|other| !other.eq_ignore_ascii_case(host)) {
            rewrites.insert(0, ("host", other));
        }
        Some(Shared {
            method,
            uri,
            host,
            rewrites,
        })
    }
}

impl Shared<'_> {
    fn target(&self) -> &[u8] {
        self.uri
            .path_and_query()
            .map_or("/", |target| target.as_str())
            .as_bytes()
    }

    /// Writes the whole key, including the key of the inner extractor.
    ///
    /// The key is unambiguous: a scheme contains no asterisk, a host or target no space, and a field no line feed.
    fn write(&self, whole: &mut impl Extend<u8>, key: &[u8]) {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let (star, end): (&[u8], &[u8]) = if self.rewrites.is_empty() {
            (b"", b"")
        } else {
            (b"*", b"\n")
        };
        let mut write = |parts: &[&[u8]]| {
            parts
                .iter()
                .for_each(|part| whole.extend(part.iter().copied()))
        };
        write(&[
            self.method.as_str().as_bytes(),
            b" ",
            scheme.as_bytes(),
            star,
            b" ",
        ]);
        write(&[&self.host.to_ascii_lowercase(), b" "]);
        for (field, value) in &self.rewrites {
            write(&[field.as_bytes(), b":", value, b"\n"]);
        }
        write(&[end, self.target()]);
        if key != self.target() {
            write(&[b" ", key]);
        }
    }
}

impl<B: Body, K: KeyExtractor<Request<B>>> KeyExtractor<Request<B>> for SharedGet<K> {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let Some(shared) = self.shared(request) else {
            return Extracted::NONE;
        };
        match self.key.extract(request) {
            Extracted::Ready(key) => Extracted::Ready(key.map(|key| {
                key.map(|key| Key::written(|whole| shared.write(whole, key.as_bytes())))
            })),
            Extracted::Pending(key) => {
                let mut whole = Vec::new();
                shared.write(&mut whole, shared.target());
                Extracted::Pending(key).map(move |key| Key::of([&whole, key.as_bytes()]))
            }
        }
    }
}

/// Returns whether a request states its scheme, so that the scheme is in its key.
pub(crate) fn tells_scheme<B>(request: &Request<B>) -> bool {
    static TELLS: [HeaderName; 4] = [
        HeaderName::from_static("x-forwarded-proto"),
        HeaderName::from_static("x-forwarded-scheme"),
        HeaderName::from_static("x-forwarded-ssl"),
        HeaderName::from_static("front-end-https"),
    ];
    let headers = request.headers();
    let is_proto = |item: &[u8]| {
        item.to_ascii_lowercase()
            .windows(6)
            .any(|part| part == b"proto=")
    };
    request.uri().scheme().is_some()
        || headers.keys().any(|field| TELLS.contains(field))
        || items(headers, &FORWARDED).any(is_proto)
}

/// Returns whether a pair of `Forwarded` is an address, and cannot be parsed as anything else.
fn is_address(pair: &[u8]) -> bool {
    split(pair, b'=').is_some_and(|(name, value)| {
        (name.eq_ignore_ascii_case(b"for") || name.eq_ignore_ascii_case(b"by"))
            && value
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"\"[]:._-".contains(byte))
    })
}
