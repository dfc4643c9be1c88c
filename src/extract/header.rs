//! Keys from the header fields of a request.

use std::borrow::Cow;
use std::fmt;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderName, Request};
use percent_encoding::percent_decode;
use smallvec::SmallVec;

use super::combinators;
use super::digest::{Digest, missing, plain};
use crate::{Error, Extracted, IntoKey, KeyExtractor};

/// Uses the value of a header field as the key. A request without the field [is refused](Error::is_missing_part): if a client
/// can leave it out, add `.or(client_ip())`, or make it [`optional`](Header::optional).
///
/// The value is hashed (SHA-256), so that credentials never become the names of Redis keys; [`plain`](Header::plain)
/// keeps it. The hash hides values that cannot be guessed, such as API keys; a value with little entropy, such as a phone
/// number, can be found by trying. A request with several such fields is a [bad request](Error::bad_request).
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) if the name is not a valid field name.
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
plain!(Header);

impl<B> KeyExtractor<Request<B>> for Header {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let values = request.headers().get_all(&self.name).iter();
        self.digest.key("header field", self.name.as_str(), values.map(|value| value.as_bytes()))
    }
}

/// Uses the value of a cookie as the key, hashed unless it is [`plain`](Cookie::plain). A request without the cookie
/// [is refused](Error::is_missing_part), unless the cookie is [`optional`](Cookie::optional). A request with several cookies
/// of that name is a [bad request](Error::bad_request).
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) if the name is not a valid cookie name (RFC 6265, 4.1.1).
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
plain!(Cookie);

impl<B> KeyExtractor<Request<B>> for Cookie {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let pairs =
            request.headers().get_all(COOKIE).iter().flat_map(|field| field.as_bytes().split(|b| *b == b';'));
        let values: SmallVec<[Cow<'_, [u8]>; 1]> = pairs
            .filter_map(|pair| {
                let (name, value) = split(pair, b'=')?;
                (name.trim_ascii() == self.name.as_bytes()).then(|| cookie_value(value))
            })
            .collect();
        self.digest.key("cookie", &self.name, values.iter().map(|value| &**value))
    }
}

/// Reads a value as cookie parsers do: without spaces and quotes around it, and percent-decoded. So all spellings of a
/// cookie have one key.
fn cookie_value(value: &[u8]) -> Cow<'_, [u8]> {
    percent_decode(unquoted(value.trim_ascii())).into()
}

/// Removes the quotes around a text.
pub(super) fn unquoted(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text)
}

/// Returns the parts before and after the first `separator`.
pub(super) fn split(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == separator)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// Uses the subject of the bearer token (RFC 6750) in the field `Authorization` as the key. The closure gets the token and
/// returns the subject. The closure, or a layer outside of this one, **must verify the token**.
///
/// A request without a bearer token [is refused](Error::is_missing_part), unless the token is
/// [`optional`](Bearer::optional), as are requests with several such fields, and those for which the closure returns an
/// [`Error`]. A request for which the closure returns `None` passes.
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
        let bad = |text: &str| Extracted::Ready(Err(Error::malformed(text)));
        let no_token = || missing("the bearer token in the header field authorization is missing");
        let field = match (fields.next(), fields.next()) {
            (None, _) => return no_token(),
            (Some(field), None) => field,
            (Some(_), Some(_)) => return bad("the header field authorization must be sent only once"),
        };
        match split(field.as_bytes(), b' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer") => {
                match std::str::from_utf8(token.trim_ascii()) {
                    Ok(token) => Extracted::Ready((self.0)(token).into_key()),
                    Err(_) => bad("the bearer token must be ASCII text"),
                }
            }
            _ => no_token(),
        }
    }
}

impl<F> fmt::Debug for Bearer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer")
    }
}
