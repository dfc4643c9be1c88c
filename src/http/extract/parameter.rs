//! Keys from header fields, cookies, query parameters and bearer tokens.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderName, HeaderValue, Request};
use percent_encoding::percent_decode;
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::key::IntoKey;
use crate::key::Key;
use crate::layers::extract::Extractor;
use crate::layers::key::{Extracted, KeyExtractor};

/// Longer values are hashed even if plain values are allowed.
const LONGEST_PLAIN: usize = 256;

/// Uses the value of a header field as the key. A request without the field
/// [is refused](crate::RefusalKind::MissingPart): if a client can leave it out, add `.or(client_ip())`, or make it
/// [`optional`](Extractor::optional).
///
/// The value is hashed (SHA-256), so that credentials never become the names of Redis keys; [`plain`](Extractor::plain)
/// keeps it. The hash hides values that cannot be guessed, such as API keys; a value with little entropy, such as a
/// phone number, can be found by trying. A request with several such fields is a [bad request](Error::bad_request).
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
pub fn header(name: &str) -> Result<Extractor<Parameter>, Error> {
    field_name(name).map(|name| Parameter::new(Location::Header(name)))
}

pub(super) fn field_name(name: &str) -> Result<HeaderName, Error> {
    HeaderName::try_from(name).map_err(|_| {
        Error::invalid(format!(
            "a header field cannot be named {name:?} (see RFC 9110, 5.1)"
        ))
    })
}

/// Uses the value of a cookie as the key, hashed unless it is [`plain`](Extractor::plain). A request without the cookie
/// [is refused](crate::RefusalKind::MissingPart), unless the cookie is [`optional`](Extractor::optional). A request
/// with several cookies of that name is a [bad request](Error::bad_request).
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
pub fn cookie(name: &str) -> Result<Extractor<Parameter>, Error> {
    cookie_name(name).map(|name| Parameter::new(Location::Cookie(name.into())))
}

pub(super) fn cookie_name(name: &str) -> Result<&str, Error> {
    let is_separator = |byte| b"()<>@,;:\\\"/[]?={}".contains(&byte);
    if name.is_empty()
        || !name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !is_separator(byte))
    {
        return Err(Error::invalid(format!(
            "a cookie cannot be named {name:?} (see RFC 6265, 4.1.1)"
        )));
    }
    Ok(name)
}

/// Uses the decoded value of a query parameter as the key, hashed unless it is [`plain`](Extractor::plain). A request
/// without the parameter [is refused](crate::RefusalKind::MissingPart), unless it is [`optional`](Extractor::optional).
/// A request that repeats it is a [bad request](Error::bad_request).
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::query};
///
/// let request = http::Request::get("/search?tenant=acme%20inc&page=2").body(()).unwrap();
/// assert_eq!(query("tenant").plain().extract(&request), Some("acme inc".into()));
/// ```
#[must_use]
pub fn query(name: &str) -> Extractor<Parameter> {
    Parameter::new(Location::Query(name.into()))
}

/// See [`header`], [`cookie`] and [`query`].
#[derive(Clone, Debug)]
pub struct Parameter {
    location: Location,
    is_plain: bool,
}

#[derive(Clone, Debug)]
enum Location {
    Header(HeaderName),
    Cookie(Box<str>),
    Query(Box<str>),
}

/// For [`header`], [`cookie`] and [`query`].
impl Extractor<Parameter> {
    /// Uses the value itself, up to 256 bytes, rather than its hash. It can be read in Redis, so use this for public
    /// values.
    #[must_use]
    pub fn plain(self) -> Self {
        Self(Parameter {
            is_plain: true,
            ..self.0
        })
    }
}

impl Parameter {
    fn new(location: Location) -> Extractor<Self> {
        Extractor(Self {
            location,
            is_plain: false,
        })
    }

    /// The key of a parameter that has exactly one value.
    fn key<V: Deref<Target: AsRef<[u8]>>>(
        &self,
        part: &str,
        name: &str,
        values: impl Iterator<Item = V>,
    ) -> Extracted {
        let value = only(format_args!("the {part} {name}"), values);
        Extracted::Ready(value.map(|value| Some(key_of((*value).as_ref(), self.is_plain))))
    }
}

impl<B> KeyExtractor<Request<B>> for Parameter {
    fn extract(&self, request: &Request<B>) -> Extracted {
        match &self.location {
            Location::Header(name) => self.key(
                "header field",
                name.as_str(),
                request.headers().get_all(name).iter(),
            ),
            Location::Cookie(name) => {
                let fields = request.headers().get_all(COOKIE).iter();
                let pairs = fields.flat_map(|field| field.as_bytes().split(|byte| *byte == b';'));
                let pairs = pairs.filter_map(|pair| split(pair, b'='));
                let pairs = pairs.filter(|(sent, _)| sent.trim_ascii() == name.as_bytes());
                self.key("cookie", name, pairs.map(|(_, value)| cookie_value(value)))
            }
            Location::Query(name) => {
                let pairs =
                    form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes());
                let pairs = pairs.filter(|(sent, _)| **sent == **name);
                self.key("query parameter", name, pairs.map(|(_, value)| value))
            }
        }
    }
}

/// Makes a key from a value: its hash, unless the key may show the value.
fn key_of(value: &[u8], is_plain: bool) -> Key {
    if is_plain && value.len() <= LONGEST_PLAIN {
        return value.into();
    }
    // 144 bits, which a key holds without an allocation.
    URL_SAFE_NO_PAD.encode(&Sha256::digest(value)[..18]).into()
}

/// Returns the only value of a part of the request, such as the header field x-tenant. An error if there is none.
///
/// Several values are an error: the service reads one of them, and this crate does not know which. If all of them
/// formed the key, each value that a client adds would give it a new key.
fn only<V>(part: impl fmt::Display, mut values: impl Iterator<Item = V>) -> Result<V, Error> {
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        (None, _) => Err(Error::missing_part(format!("{part} is missing"))),
        (Some(_), Some(_)) => Err(Error::malformed(format!("{part} must be sent only once"))),
    }
}

/// Reads a value as cookie parsers do: without spaces and quotes around it, and percent-decoded. So all spellings of a
/// cookie have one key.
fn cookie_value(value: &[u8]) -> Cow<'_, [u8]> {
    percent_decode(unquoted(value.trim_ascii())).into()
}

/// Removes the quotes around a text.
pub(super) fn unquoted(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\"")
        .and_then(|text| text.strip_suffix(b"\""))
        .unwrap_or(text)
}

/// Returns the parts before and after the first `separator`.
pub(super) fn split(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == separator)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// Uses the subject of the bearer token (RFC 6750) in the field `Authorization` as the key. The closure gets the token
/// and returns the subject. The closure, or a layer outside of this one, **must verify the token**.
///
/// A request without a bearer token [is refused](crate::RefusalKind::MissingPart), unless the token is
/// [`optional`](Extractor::optional). A request with several such fields is refused, and so is one for which the
/// closure returns an [`Error`]. A request for which the closure returns `None` passes.
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
pub fn bearer<F, K>(subject: F) -> Extractor<Bearer<F>>
where
    F: Fn(&str) -> K,
    K: IntoKey,
{
    Extractor(Bearer(subject))
}

/// See [`bearer`].
#[derive(Clone, Copy)]
pub struct Bearer<F>(F);

debug!(Bearer<F>);

impl<B, F: Fn(&str) -> K, K: IntoKey> KeyExtractor<Request<B>> for Bearer<F> {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let field = only(TOKEN, request.headers().get_all(AUTHORIZATION).iter());
        Extracted::Ready(
            field
                .and_then(token)
                .and_then(|token| (self.0)(token).into_key()),
        )
    }
}

/// The part of a request that [`bearer`] reads.
const TOKEN: &str = "the bearer token in the header field authorization";

fn token(field: &HeaderValue) -> Result<&str, Error> {
    match split(field.as_bytes(), b' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer") => {
            str::from_utf8(token.trim_ascii())
                .map_err(|_| Error::malformed("the bearer token must be ASCII text"))
        }
        _ => Err(Error::missing_part(format!("{TOKEN} is missing"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_hashed_with_sha_256() {
        // The first 18 bytes of printf abc | sha256sum, in base64url.
        assert_eq!(key_of(b"abc", false), "ungWv48Bz-pBQUDeXa4iI7AD".into());
    }

    #[test]
    fn short_values_may_be_shown() {
        let (shown, hashed) = (
            |value: &[u8]| key_of(value, true),
            |value: &[u8]| key_of(value, false),
        );
        assert_eq!(shown(b"abc"), "abc".into());
        assert_eq!(shown(&[b'a'; 257]), hashed(&[b'a'; 257]));
    }
}
