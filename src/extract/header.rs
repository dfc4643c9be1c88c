//! Keys from the header fields of a request.

use std::fmt;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderName, Request};

use super::combinators;
use super::digest::Digest;
use crate::{Error, Extracted, IntoKey, KeyExtractor};

/// By the value of a header field. Requests without it pass: add `.or(client_ip())` where it can be left out.
///
/// The value is hashed (SHA-256), so that credentials never become the names of Redis keys; [`plain`](Header::plain)
/// keeps it. A request with several such fields has a key of its own.
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) where the name cannot be that of a field.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::header};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let request = http::Request::get("/").header("x-tenant", "acme").body(()).unwrap();
/// assert_eq!(header("x-tenant")?.plain().extract(&request), Some("acme".into()));
/// assert!(header("x tenant").unwrap_err().is_invalid());
/// # Ok(()) }
/// ```
pub fn header(name: &str) -> Result<Header, Error> {
    Ok(Header { name: field_name(name)?, digest: Digest::default() })
}

pub(super) fn field_name(name: &str) -> Result<HeaderName, Error> {
    HeaderName::try_from(name)
        .map_err(|_| Error::invalid(format!("a header field cannot be named {name:?} (see RFC 9110, 5.1)")))
}

/// See [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    digest: Digest,
}

combinators!(Header);

impl Header {
    /// Keeps the value as it is, up to 256 bytes: it can be read in Redis. For what is public.
    #[must_use]
    pub fn plain(self) -> Self {
        Self { digest: Digest { plain: true }, ..self }
    }
}

impl<B> KeyExtractor<Request<B>> for Header {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let values = request.headers().get_all(&self.name).iter();
        self.digest.key(values.map(|value| value.as_bytes())).into()
    }
}

/// By the value of a cookie, hashed unless it is [`plain`](Cookie::plain). Requests without it pass.
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) where the name cannot be that of a cookie (RFC 6265, 4.1.1).
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::cookie};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let request = http::Request::get("/").header("cookie", "theme=dark; plan=free").body(()).unwrap();
/// assert_eq!(cookie("plan")?.plain().extract(&request), Some("free".into()));
/// # Ok(()) }
/// ```
pub fn cookie(name: &str) -> Result<Cookie, Error> {
    Ok(Cookie { name: cookie_name(name)?.into(), digest: Digest::default() })
}

pub(super) fn cookie_name(name: &str) -> Result<&str, Error> {
    let is_separator = |byte| b"()<>@,;:\\\"/[]?={}".contains(&byte);
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic() && !is_separator(byte)) {
        return Err(Error::invalid(format!("a cookie cannot be named {name:?} (see RFC 6265, 4.1.1)")));
    }
    Ok(name)
}

/// See [`cookie`].
#[derive(Clone, Debug)]
pub struct Cookie {
    name: Box<str>,
    digest: Digest,
}

combinators!(Cookie);

impl Cookie {
    /// Keeps the value as it is, up to 256 bytes: it can be read in Redis. For what is public.
    #[must_use]
    pub fn plain(self) -> Self {
        Self { digest: Digest { plain: true }, ..self }
    }
}

impl<B> KeyExtractor<Request<B>> for Cookie {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let pairs =
            request.headers().get_all(COOKIE).iter().flat_map(|field| field.as_bytes().split(|b| *b == b';'));
        let values = pairs.filter_map(|pair| {
            let (name, value) = split(pair.trim_ascii(), b'=')?;
            (name == self.name.as_bytes()).then_some(value)
        });
        self.digest.key(values).into()
    }
}

/// What stands before and after the first `separator`.
pub(super) fn split(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == separator)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// By what a closure makes of the bearer token (RFC 6750) of the field `Authorization`: the subject of a token that the
/// closure, or a layer outside of this one, **has verified**. Requests without a token pass, as does what the closure
/// returns `None` for. An [`Error`] refuses the request.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::bearer};
///
/// fn subject(token: &str) -> Option<String> {
///     token.strip_prefix("verified-").map(str::to_owned) // verify the signature here
/// }
///
/// let request = http::Request::get("/").header("authorization", "Bearer verified-ann").body(()).unwrap();
/// assert_eq!(bearer(subject).extract(&request), Some("ann".into()));
/// ```
pub fn bearer<F, K>(subject: F) -> Bearer<F>
where
    F: Fn(&str) -> K,
    K: IntoKey,
{
    Bearer(subject)
}

/// See [`bearer`].
#[derive(Clone, Copy)]
pub struct Bearer<F>(F);

combinators!(Bearer<F>);

impl<B, F: Fn(&str) -> K, K: IntoKey> KeyExtractor<Request<B>> for Bearer<F> {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let mut fields = request.headers().get_all(AUTHORIZATION).iter();
        let (Some(field), None) = (fields.next(), fields.next()) else { return Extracted::NONE };
        let token = split(field.as_bytes(), b' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer"))
            .and_then(|(_, token)| std::str::from_utf8(token.trim_ascii()).ok());
        token.map_or(Extracted::NONE, |token| Extracted::Ready((self.0)(token).into_key()))
    }
}

impl<F> fmt::Debug for Bearer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer")
    }
}
