//! The key extractor of what is asked for.

use std::fmt;
use std::sync::Arc;

use http::header::HOST;
use http::{Extensions, HeaderName, HeaderValue, Request, Uri};
use http_body::Body;

use super::checked::may_be_shared;
use crate::{Error, Key, KeyExtractor};

#[cfg(test)]
mod tests;

/// By what is asked for: the method, the scheme where it is known, the host, the path and the query. For single
/// flights of what is public.
///
/// Only GET and HEAD have a key. Nor has a request one, so that it passes and is answered by itself,
///
/// * that may be private: with `Authorization`, `Proxy-Authorization` or `Cookie`, with a user in the URI, or with a
///   field that you have [named](RequestTarget::private_if);
/// * that asks for something of its own: with `Range`, with conditions (`If-None-Match` and the other four), with
///   `Upgrade`, or with a body;
/// * that asks not to be answered with what others are: with `Cache-Control: no-store` or `no-cache`;
/// * that names several hosts, be it in the URI or the fields `Host`.
///
/// **Nobody may get what is another's.** Name all else that your service knows users by: fields of your own, such as
/// `x-api-key`, or what a proxy before you adds. Client certificates and addresses cannot be seen here: where they
/// matter, write a closure. Tokens in the query are part of the key, and so safe. A closure in place of this one is
/// believed within what [`single_flight`](super::single_flight) lets pass: what it gives the same key may get the same
/// response.
///
/// Nor may anybody choose what others get. Whichever field changes a response, `X-Forwarded-Host`, say, must be in its
/// `Vary`, or be named here, or not reach you from outside.
///
/// The host is in lower case. Where it is the field's it goes without its port: processes of a service that listen on
/// different ports share, and services that are different have flights of different names. Where it is the URI's, as
/// in what a client sends, the port is part of it: there it is another service's.
///
/// **In routers that axum nests, give it the [whole URI](RequestTarget::uri)**: axum takes the prefix off the one that
/// their layers see, and `/v1/prices` and `/v2/prices` would share answers where they share a flight.
///
/// ```
/// # fn main() -> Result<(), tower_distributed::Error> {
/// use tower_distributed::{KeyExtractor, http::request_target};
///
/// let key = request_target().private_if("x-api-key")?;
///
/// let request = http::Request::get("https://example.com/prices?of=tea");
/// assert_eq!(key.extract(&request.body(String::new()).unwrap()), Some("GET https example.com /prices?of=tea".into()));
///
/// let request = http::Request::get("https://example.com/prices?of=tea").header("x-api-key", "ann");
/// assert_eq!(key.extract(&request.body(String::new()).unwrap()), None);
/// # Ok(()) }
/// ```
#[must_use]
pub fn request_target() -> RequestTarget {
    RequestTarget { private_if: Vec::new(), uri: None }
}

type ReadUri = Arc<dyn Fn(&Extensions) -> Option<&Uri> + Send + Sync>;

/// See [`request_target`].
#[derive(Clone)]
pub struct RequestTarget {
    private_if: Vec<HeaderName>,
    uri: Option<ReadUri>,
}

impl RequestTarget {
    /// Requests with this header field are private as well: they are answered by themselves.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the name cannot be that of a field.
    pub fn private_if(mut self, field: &str) -> Result<Self, Error> {
        self.private_if.push(super::key::field_name(field)?);
        Ok(self)
    }

    /// Goes by the URI that has been put among the request's extensions as a `T`, where there is one, rather than by
    /// the request's own.
    ///
    /// ```
    /// use axum::extract::OriginalUri;
    /// use tower_distributed::http::request_target;
    ///
    /// request_target().uri(|uri: &OriginalUri| &uri.0);
    /// ```
    #[must_use]
    pub fn uri<T: Send + Sync + 'static>(self, read: impl Fn(&T) -> &Uri + Send + Sync + 'static) -> Self {
        Self { uri: Some(Arc::new(move |extensions| extensions.get::<T>().map(&read))), ..self }
    }
}

impl<B: Body> KeyExtractor<Request<B>> for RequestTarget {
    fn extract(&self, request: &Request<B>) -> Option<Key> {
        let headers = request.headers();
        if !may_be_shared(request) || self.private_if.iter().any(|field| headers.contains_key(field)) {
            return None;
        }
        let original = self.uri.as_ref().and_then(|read| read(request.extensions()));
        let uri = original.unwrap_or(request.uri());
        let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
        let mut hosts = authority.into_iter().chain(headers.get_all(HOST).iter().map(HeaderValue::as_bytes));
        let host = hosts.next().unwrap_or_default().to_ascii_lowercase();
        let name = if authority.is_some() { &host } else { without_port(&host) };
        let has_user = authority.is_some_and(|authority| authority.contains(&b'@'));
        if has_user || hosts.any(|other| !other.eq_ignore_ascii_case(&host)) {
            return None;
        }
        // Only the host can have spaces in it, if it is wrong, so no two targets have the same key.
        let method = request.method().as_str().as_bytes();
        let scheme = uri.scheme_str().unwrap_or_default().as_bytes();
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).as_bytes();
        Some([method, scheme, name, path].join(&b' ').into())
    }
}

fn without_port(host: &[u8]) -> &[u8] {
    let Some(colon) = host.iter().rposition(|byte| *byte == b':') else { return host };
    let (name, port) = (&host[..colon], &host[colon + 1..]);
    // Of an IPv6 address, the colons are in brackets.
    let is_port = port.iter().all(u8::is_ascii_digit) && (name.ends_with(b"]") || !name.contains(&b':'));
    if is_port { name } else { host }
}

impl fmt::Debug for RequestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestTarget").field("private_if", &self.private_if).finish_non_exhaustive()
    }
}
