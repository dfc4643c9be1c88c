//! Key extractors: which key a request has.
//!
//! An extractor names the key of a request. A closure is one, and so is each function of this module. They combine:
//!
//! ```
//! use tower_distributed::KeyExtractor;
//! use tower_distributed::extract::{client_ip, grpc_method};
//!
//! // For each client, each method has a key of its own.
//! let key = grpc_method().and(client_ip());
//!
//! let mut call = http::Request::post("/shop.Orders/Place").body(()).unwrap();
//! call.extensions_mut().insert(std::net::IpAddr::from([192, 0, 2, 7])); // as the server does
//! assert_eq!(key.extract(&call), Some(tower_distributed::Key::of(["shop.Orders/Place", "192.0.2.7"])));
//! ```
//!
//! | extractor | the key is | `None` (the request passes) |
//! |---|---|---|
//! | [`header`], [`cookie`], [`query`] | the value, hashed unless it is [`plain`](Header::plain) | where it is missing |
//! | [`extension`] | what a closure makes of an extension, such as the authenticated user | where the closure says so; a missing extension is an error |
//! | [`bearer`] | what a closure makes of the token | where there is no token, or the closure says so |
//! | [`client_ip`] | the client's address; of IPv6 its /64 network | never |
//! | [`method`], [`path`], [`matched_path`], [`path_and_query`] | as named | never |
//! | [`host`] | the host that a client asks | where the URI has no host |
//! | [`grpc_service`], [`grpc_method`] | as named | where the path is not that of a call |
//! | [`shared_get`] | all that HTTP lets a response depend on | where the request must not be shared |
//! | [`look_up`] | the result of an asynchronous closure | where the closure says so |
//!
//! | combinator | |
//! |---|---|
//! | `a.or(b)` | `b` where `a` is `None`. A key of `a` is never a key of `b`, so no client can name the bucket of another kind. |
//! | `a.and(b)` | both; `None` where either is. Keys of several parts are unambiguous ([`Key::of`](crate::Key::of)). |
//! | `a.prefixed("text")` | with a constant part before it |
//! | `a.map(closure)` | changed by a closure from [`Key`](crate::Key) |
//! | `a.skip_if(closure)` | `None` where a closure from `&Request` is `true` |
//!
//! ```
//! use http::Request;
//! use tower_distributed::extract::{header, path};
//! use tower_distributed::{Key, KeyExtractor};
//!
//! # fn main() -> Result<(), tower_distributed::Error> {
//! let tenant = header("x-tenant")?.plain().map(|tenant: Key| tenant.as_bytes().to_ascii_lowercase());
//! let key = tenant.or(path()).prefixed("v1").skip_if(|request: &Request<()>| request.uri().path() == "/healthz");
//!
//! let get = |tenant, path| Request::get(path).header("x-tenant", tenant).body(()).unwrap();
//! assert_eq!(key.extract(&get("ACME", "/a")), Some(Key::of([Key::from("v1"), Key::of(["or 1", "acme"])])));
//! assert_eq!(key.extract(&get("ACME", "/healthz")), None);
//! # Ok(()) }
//! ```
//!
//! **`None` lets a request pass without a limit**: a client that leaves a header out is not limited by it. End with an
//! extractor that is never `None`, such as `.or(client_ip())`.

#[cfg(feature = "http")]
mod client_ip;
mod combine;
#[cfg(feature = "http")]
mod digest;
#[cfg(feature = "http")]
mod extension;
#[cfg(feature = "http")]
mod header;
#[cfg(feature = "http")]
mod message;
#[cfg(feature = "http")]
mod path;
#[cfg(feature = "http")]
mod query;
#[cfg(feature = "http")]
mod shared_get;

#[cfg(feature = "http")]
pub use self::client_ip::{ClientIp, IntoNetwork, client_ip};
pub use self::combine::{And, By, Map, Or, Prefixed, by};
#[cfg(feature = "http")]
pub use self::extension::{Extension, extension};
#[cfg(feature = "http")]
pub use self::header::{Bearer, Cookie, Header, bearer, cookie, header};
#[cfg(feature = "http")]
pub use self::message::{GrpcMethod, GrpcService, Host, Method, grpc_method, grpc_service, host, method};
#[cfg(feature = "axum")]
pub use self::path::{MatchedPath, matched_path};
#[cfg(feature = "http")]
pub use self::path::{Path, PathAndQuery, path, path_and_query};
#[cfg(feature = "http")]
pub use self::query::{Query, query};
#[cfg(feature = "http")]
pub(crate) use self::shared_get::tells_scheme;
#[cfg(feature = "http")]
pub use self::shared_get::{SharedGet, shared_get};
pub use crate::layer::key::SkipIf;
pub use crate::layer::{Extracted, IntoKey, KeyExtractor, KeyFn, LookUp, look_up};

#[cfg(test)]
#[cfg(feature = "http")]
mod tests;

use self::combine::combinators;

combinators!(LookUp<F>);
