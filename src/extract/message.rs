//! Keys from the request line.

use http::Request;

use super::combinators;
use super::digest::missing;
use crate::{Extracted, Key, KeyExtractor};

/// Uses the method as the key.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::method};
///
/// let request = http::Request::put("/document/42").body(()).unwrap();
/// assert_eq!(method().extract(&request), Some("PUT".into()));
/// ```
#[must_use]
pub fn method() -> Method {
    Method
}

/// See [`method`].
#[derive(Clone, Copy, Debug)]
pub struct Method;

combinators!(Method);

impl<B> KeyExtractor<Request<B>> for Method {
    fn extract(&self, request: &Request<B>) -> Extracted {
        Key::from(request.method().as_str()).into()
    }
}

/// Uses the host in the URI as the key, in lower case, with the port if the URI has one. For clients, whose requests have
/// absolute URIs. A request whose URI has no host [is refused](crate::Error::is_missing_part), unless it is
/// [`optional`](Host::optional). Servers receive such requests over HTTP/1.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::host};
///
/// let request = http::Request::get("https://API.example.com/prices").body(()).unwrap();
/// assert_eq!(host().extract(&request), Some("api.example.com".into()));
/// ```
#[must_use]
pub fn host() -> Host {
    Host
}

/// See [`host`].
#[derive(Clone, Copy, Debug)]
pub struct Host;

combinators!(Host);

impl<B> KeyExtractor<Request<B>> for Host {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let Some(authority) = request.uri().authority() else { return missing("the URI has no host") };
        let host = authority.host().to_ascii_lowercase();
        match authority.port_u16() {
            Some(port) => Key::from(format!("{host}:{port}")).into(),
            None => Key::from(host).into(),
        }
    }
}

/// Uses the service of a gRPC call as the key, such as `shop.Orders`. A request whose path is not that of a call
/// [is refused](crate::Error::is_missing_part).
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::{grpc_method, grpc_service}};
///
/// let call = http::Request::post("http://[::1]/shop.Orders/Place").body(()).unwrap();
/// assert_eq!(grpc_service().extract(&call), Some("shop.Orders".into()));
/// assert_eq!(grpc_method().extract(&call), Some("shop.Orders/Place".into()));
/// ```
#[must_use]
pub fn grpc_service() -> GrpcService {
    GrpcService
}

/// See [`grpc_service`].
#[derive(Clone, Copy, Debug)]
pub struct GrpcService;

combinators!(GrpcService);

impl<B> KeyExtractor<Request<B>> for GrpcService {
    fn extract(&self, request: &Request<B>) -> Extracted {
        call(request.uri().path()).map_or_else(no_call, |(service, _)| Key::from(service).into())
    }
}

/// Uses the service and method of a gRPC call as the key, such as `shop.Orders/Place`. A request whose path is not that of
/// a call [is refused](crate::Error::is_missing_part). See [`grpc_service`] for an example.
#[must_use]
pub fn grpc_method() -> GrpcMethod {
    GrpcMethod
}

/// See [`grpc_method`].
#[derive(Clone, Copy, Debug)]
pub struct GrpcMethod;

combinators!(GrpcMethod);

impl<B> KeyExtractor<Request<B>> for GrpcMethod {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let path = request.uri().path();
        call(path).map_or_else(no_call, |_| Key::from(path.trim_start_matches('/')).into())
    }
}

fn no_call() -> Extracted {
    missing("the path is not that of a gRPC call")
}

/// The service and the method of a call.
fn call(path: &str) -> Option<(&str, &str)> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    (!service.is_empty() && !method.is_empty() && !method.contains('/')).then_some((service, method))
}
