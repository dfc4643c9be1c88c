//! Key extractors: they name the key of a request.
//!
//! A closure is an extractor, and a [`Key`](crate::Key) is an extractor that returns the same key for all requests. The
//! functions of this module return extractors that can be combined:
//!
//! ```
//! use tower_distributed::KeyExtractor;
//! use tower_distributed::extract::{client_ip, grpc_method};
//!
//! // Each method of each client has a separate key.
//! let key = grpc_method().and(client_ip());
//!
//! let mut call = http::Request::post("/shop.Orders/Place").body(()).unwrap();
//! call.extensions_mut().insert(std::net::IpAddr::from([192, 0, 2, 7])); // as the server does
//! assert_eq!(key.extract(&call), Some(tower_distributed::Key::of(["shop.Orders/Place", "192.0.2.7"])));
//! ```
//!
//! | extractor | the key is | what may be missing |
//! |---|---|---|
//! | [`header`], [`cookie`], [`query`] | the value, hashed unless it is [`plain`](Extractor::plain) | the value |
//! | [`extension`] | the result of a closure for an extension, such as the authenticated user | the extension |
//! | [`bearer`] | the result of a closure for the token | the token |
//! | [`client_ip`] | the client's address; of IPv6 its /64 network | |
//! | [`method`], [`path`], [`matched_path`], [`path_and_query`] | as named | |
//! | [`host`] | the host of the request, over HTTP/1 and HTTP/2 | the host |
//! | [`grpc_service`], [`grpc_method`] | as named | a path of a call |
//! | [`shared_get`] | all parts of a request on which HTTP lets a response depend; none for requests that must not be shared | |
//! | [`look_up`] | the result of an asynchronous closure | |
//! | [`by`] | the key of a closure, or of an extractor of another type, which can then be combined with others | |
//!
//! | combinator of an [`Extractor`] | |
//! |---|---|
//! | `a.or(b)` | `b` if the part of `a` is missing, or `a` is `None`. A key of `a` is never a key of `b`, so no client can name the bucket of another kind. |
//! | `a.optional()` | a separate key if the part of `a` is missing, or `a` is `None` |
//! | `a.and(b)`, and in a tuple `(a, b)` | both. Keys of several parts are unambiguous ([`Key::of`](crate::Key::of)). |
//! | `a.prefixed("text")` | with a constant part before it |
//! | `a.map(closure)` | changed by a closure from [`Key`](crate::Key) |
//! | `a.skip_if(closure)` | `None` if a closure from `&Request` returns `true` |
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
//! # Requests without a part of their key
//!
//! A client cannot avoid a limit by leaving a part out. A request without a part is refused:
//!
//! | missing | refusal |
//! |---|---|
//! | a part that the client sends: a header field, a cookie, a query parameter, a token, a host, a path of a call | [`MissingPart`](crate::RefusalKind::MissingPart), with the name of the part: 400, or `INVALID_ARGUMENT` over gRPC |
//! | a part that the server adds: an [`extension`], or the address of the peer for [`client_ip`] | [`Invalid`](crate::RefusalKind::Invalid): 500, or `INTERNAL` over gRPC. The server or the order of its layers is wrong. |
//!
//! If a part may be missing, set what is used instead: `.or(client_ip())` after an extractor uses another key, and
//! `.optional()` gives all requests without the part one separate key. A missing address of the peer is an error in
//! either case.
//!
//! A request passes without a limit only if a closure returns `None`, or by `skip_if`.

#[cfg(feature = "http")]
pub use crate::http::extract::*;
pub use crate::layers::extract::{Extractor, by, look_up};
