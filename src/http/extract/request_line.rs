//! Keys from the request line: the method, the host, the service and the method of a gRPC call, and the route of axum.

use std::net::Ipv6Addr;

use http::header::HOST;
use http::{Request, Uri};

use crate::error::Error;
use crate::key::Key;
use crate::layers::extract::Extractor;
use crate::layers::key::{Extracted, KeyExtractor};

/// Uses the method as the key.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::method};
///
/// let request = http::Request::put("/document/42").body(()).unwrap();
/// assert_eq!(method().extract(&request), Some("PUT".into()));
/// ```
#[must_use]
pub fn method() -> Extractor<RequestLine> {
    Extractor(RequestLine(Part::Method))
}

/// Uses the host of a request as the key: the host of the URI, if the URI has one, as over HTTP/2 and around clients;
/// otherwise the header field `Host`, as over HTTP/1. All spellings of a host have one key.
///
/// | in | is |
/// |---|---|
/// | upper-case letters | in lower case |
/// | a dot at the end | removed |
/// | the ports 80 and 443, an empty port | removed for every scheme: over HTTP/1, a server does not know the scheme |
/// | another port | kept, without leading zeros |
/// | an IPv6 address | in its shortest form, in brackets |
/// | a name with letters that are not ASCII | as it was sent: clients send it in its ASCII form, `xn--…` |
///
/// `X-Forwarded-Host` and the like are not read. If the URI has a host, `Host` is ignored (RFC 9112, 3.2.2).
///
/// A request without a host [is refused](crate::RefusalKind::MissingPart), unless it is
/// [`optional`](Extractor::optional). A request with several `Host` fields or a malformed one [is
/// refused](crate::RefusalKind::BadRequest). A client can send any host, and each host is a separate key: put the layer
/// where only requests for your own hosts arrive.
///
/// ```
/// use http::Request;
/// use tower_distributed::{KeyExtractor, extract::host};
///
/// let over_http2 = Request::get("https://API.example.com:443/prices").body(()).unwrap();
/// let over_http1 = Request::get("/prices").header("host", "api.example.com.").body(()).unwrap();
/// assert_eq!(host().extract(&over_http2), Some("api.example.com".into()));
/// assert_eq!(host().extract(&over_http1), Some("api.example.com".into()));
/// ```
#[must_use]
pub fn host() -> Extractor<RequestLine> {
    Extractor(RequestLine(Part::Host))
}

/// Uses the service of a gRPC call as the key, such as `shop.Orders`. A request whose path is not the path of a gRPC
/// call [is refused](crate::RefusalKind::MissingPart).
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::{grpc_method, grpc_service}};
///
/// let call = http::Request::post("http://[::1]/shop.Orders/Place").body(()).unwrap();
/// assert_eq!(grpc_service().extract(&call), Some("shop.Orders".into()));
/// assert_eq!(grpc_method().extract(&call), Some("shop.Orders/Place".into()));
/// ```
#[must_use]
pub fn grpc_service() -> Extractor<RequestLine> {
    Extractor(RequestLine(Part::GrpcService))
}

/// Uses the service and method of a gRPC call as the key, such as `shop.Orders/Place`. A request whose path is not the
/// path of a gRPC call [is refused](crate::RefusalKind::MissingPart). See [`grpc_service`] for an example.
#[must_use]
pub fn grpc_method() -> Extractor<RequestLine> {
    Extractor(RequestLine(Part::GrpcMethod))
}

/// Uses the route that axum has matched as the key, such as `/document/{id}`. Outside of a router and in its fallback,
/// axum has matched no route: the key is then empty, and such requests share one limit.
///
/// axum matches a route before it calls the layers of `Router::layer` and `MethodRouter::layer`, but not those around
/// the whole router.
///
/// ```
/// use tower_distributed::{Quota, QuotaTable, Store, TokenBucket, web};
/// use tower_distributed::extract::matched_path;
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "routes", Quota::per_second(100))?;
/// let per_route = web::rate_limit(bucket, matched_path());
/// let app: axum::Router = axum::Router::new().route("/document/{id}", axum::routing::get(async || "")).layer(per_route);
/// # Ok(()) }
/// ```
#[cfg(feature = "axum")]
#[must_use]
pub fn matched_path() -> Extractor<RequestLine> {
    Extractor(RequestLine(Part::MatchedPath))
}

/// See [`method`], [`host`], [`grpc_service`] and [`grpc_method`].
#[derive(Clone, Copy, Debug)]
pub struct RequestLine(Part);

#[derive(Clone, Copy, Debug)]
enum Part {
    Method,
    Host,
    GrpcService,
    GrpcMethod,
    #[cfg(feature = "axum")]
    MatchedPath,
}

impl<B> KeyExtractor<Request<B>> for RequestLine {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let key = match self.0 {
            Part::Method => Ok(request.method().as_str().into()),
            Part::Host => host_of(request),
            Part::GrpcService => call(request.uri()).map(|(service, _)| service.into()),
            Part::GrpcMethod => call(request.uri()).map(|(_, path)| path.into()),
            #[cfg(feature = "axum")]
            Part::MatchedPath => {
                let matched = request.extensions().get::<axum::extract::MatchedPath>();
                Ok(matched.map_or("", |matched| matched.as_str()).into())
            }
        };
        Extracted::Ready(key.map(Some))
    }
}

fn host_of<B>(request: &Request<B>) -> Result<Key, Error> {
    if let Some(authority) = request.uri().authority() {
        return normal_host(authority.as_str().rsplit('@').next().unwrap_or_default());
    }
    let mut fields = request.headers().get_all(HOST).iter();
    let missing = || Error::missing_part("the request has no host");
    let field = fields.next().ok_or_else(missing)?;
    if fields.next().is_some() {
        return Err(Error::malformed(
            "the header field host is sent several times",
        ));
    }
    let text = std::str::from_utf8(field.as_bytes())
        .map_err(|_| malformed_host())?
        .trim_ascii();
    if text.is_empty() {
        Err(missing())
    } else {
        normal_host(text)
    }
}

/// The normal form of a host, with its port unless that is 80 or 443.
fn normal_host(text: &str) -> Result<Key, Error> {
    let (host, port) = match text.rfind(']') {
        Some(end) => text.split_at(end + 1),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        Some("") => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse::<u16>().map_err(|_| malformed_host())?)
        }
        None if port.is_empty() => None,
        _ => return Err(malformed_host()),
    };
    let host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(address) => match address.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]"),
            Err(_) => host.to_ascii_lowercase(),
        },
        None => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
    };
    if host.is_empty()
        || host
            .bytes()
            .any(|byte| byte <= b' ' || b"/?#@,\\\x7f".contains(&byte))
    {
        return Err(malformed_host());
    }
    Ok(match port {
        None | Some(80 | 443) => host.into(),
        Some(port) => format!("{host}:{port}").into(),
    })
}

fn malformed_host() -> Error {
    Error::malformed("the host of the request is malformed")
}

/// The service of a gRPC call, and the service with the method.
fn call(uri: &Uri) -> Result<(&str, &str), Error> {
    let call = uri.path().strip_prefix('/').and_then(|call| {
        let (service, method) = call.split_once('/')?;
        (!service.is_empty() && !method.is_empty() && !method.contains('/'))
            .then_some((service, call))
    });
    call.ok_or_else(|| Error::missing_part("the path is not that of a gRPC call"))
}
