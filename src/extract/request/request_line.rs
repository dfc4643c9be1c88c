//! Keys from the request line.

use http::{Request, Uri};

use super::Extractor;
use crate::{Error, Extracted, Key, KeyExtractor};

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

/// Uses the host in the URI as the key, in lower case, with the port if the URI has one. For clients, whose requests have
/// absolute URIs. A request whose URI has no host [is refused](crate::RefusalKind::MissingPart), unless it is
/// [`optional`](Extractor::optional). Servers receive such requests over HTTP/1.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::host};
///
/// let request = http::Request::get("https://API.example.com/prices").body(()).unwrap();
/// assert_eq!(host().extract(&request), Some("api.example.com".into()));
/// ```
#[must_use]
pub fn host() -> Extractor<RequestLine> {
    Extractor(RequestLine(Part::Host))
}

/// Uses the service of a gRPC call as the key, such as `shop.Orders`. A request whose path is not that of a call
/// [is refused](crate::RefusalKind::MissingPart).
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

/// Uses the service and method of a gRPC call as the key, such as `shop.Orders/Place`. A request whose path is not that of
/// a call [is refused](crate::RefusalKind::MissingPart). See [`grpc_service`] for an example.
#[must_use]
pub fn grpc_method() -> Extractor<RequestLine> {
    Extractor(RequestLine(Part::GrpcMethod))
}

/// Uses the route that axum has matched as the key, such as `/document/{id}`. If axum has matched no route, which is so
/// outside of a router and in its fallback, the key is empty: such requests are limited together.
///
/// axum matches a route before it calls the layers of `Router::layer` and `MethodRouter::layer`, but not those around the
/// whole router.
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
            Part::Host => host_of(request.uri()),
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

fn host_of(uri: &Uri) -> Result<Key, Error> {
    let authority = uri.authority().ok_or_else(|| Error::missing_part("the URI has no host"))?;
    let host = authority.host().to_ascii_lowercase();
    Ok(match authority.port_u16() {
        Some(port) => format!("{host}:{port}").into(),
        None => host.into(),
    })
}

/// The service of a gRPC call, and the service with the method.
fn call(uri: &Uri) -> Result<(&str, &str), Error> {
    let call = uri.path().strip_prefix('/').and_then(|call| {
        let (service, method) = call.split_once('/')?;
        (!service.is_empty() && !method.is_empty() && !method.contains('/')).then_some((service, call))
    });
    call.ok_or_else(|| Error::missing_part("the path is not that of a gRPC call"))
}
