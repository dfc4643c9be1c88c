//! Keys from the path of a request, and from its extensions, which may contain the original path.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use derive_where::derive_where;
use http::{Extensions, Request, Uri};
use percent_encoding::percent_decode_str;

use crate::error::Error;
use crate::key::IntoKey;
use crate::key::Key;
use crate::layers::extract::Extractor;
use crate::layers::key::{Extracted, KeyExtractor};

type ReadUri = Arc<dyn Fn(&Extensions) -> Option<&Uri> + Send + Sync>;

/// Uses the path as the key, decoded and normalised, so that different spellings of a path have one key.
///
/// Percent-encoded characters are decoded, except `/` and `%`. Empty and `.` segments are removed, and `..` removes the
/// segment before it. So `/document/42`, `/document/%34%32` and `//document/./42/` have one key.
///
/// A nested axum router sees the path without its prefix. With the feature `axum`, this extractor uses the whole path;
/// without the feature, set where the whole URI is with [`uri`](Extractor::uri).
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::path};
///
/// let request = http::Request::get("/document/%34%32?draft=1").body(()).unwrap();
/// assert_eq!(path().extract(&request), Some("/document/42".into()));
/// ```
#[must_use]
pub fn path() -> Extractor<Path> {
    Extractor(Path {
        uri: None,
        is_normalised: true,
    })
}

/// Uses the path and the query as the key, as they were sent. [`shared_get`](fn@super::shared_get) uses it.
///
/// In a nested axum router it uses the whole path with the feature `axum`. Without the feature, set where the whole URI
/// is with [`uri`](Extractor::uri); otherwise `/v1/prices` and `/v2/prices` share a key.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::path_and_query};
///
/// let request = http::Request::get("https://example.com/prices?of=tea").body(()).unwrap();
/// assert_eq!(path_and_query().extract(&request), Some("/prices?of=tea".into()));
/// ```
#[must_use]
pub fn path_and_query() -> Extractor<Path> {
    Extractor(Path {
        uri: None,
        is_normalised: false,
    })
}

/// See [`path`] and [`path_and_query`].
#[derive(Clone)]
pub struct Path {
    /// Reads the URI that the client sent from the extensions, if it is there.
    uri: Option<ReadUri>,
    /// Without the query, and normalised.
    is_normalised: bool,
}

/// For [`path`] and [`path_and_query`].
impl Extractor<Path> {
    /// Uses the URI in an extension of type `T`, if the request has one, rather than the request's own.
    ///
    /// ```
    /// use axum::extract::OriginalUri;
    /// use tower_distributed::extract::path;
    ///
    /// path().uri(|uri: &OriginalUri| &uri.0);
    /// ```
    #[must_use]
    pub fn uri<T: Send + Sync + 'static>(
        self,
        read: impl Fn(&T) -> &Uri + Send + Sync + 'static,
    ) -> Self {
        let read: ReadUri = Arc::new(move |extensions| extensions.get::<T>().map(&read));
        Self(Path {
            uri: Some(read),
            ..self.0
        })
    }
}

impl<B> KeyExtractor<Request<B>> for Path {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let extensions = request.extensions();
        let original = match &self.uri {
            Some(read) => read(extensions),
            #[cfg(feature = "axum")]
            None => extensions
                .get::<axum::extract::OriginalUri>()
                .map(|original| &original.0),
            #[cfg(not(feature = "axum"))]
            None => None,
        };
        let uri = original.unwrap_or(request.uri());
        if self.is_normalised {
            return normalised(uri.path()).into();
        }
        Key::from(uri.path_and_query().map_or("/", |target| target.as_str())).into()
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_normalised {
            "Path"
        } else {
            "PathAndQuery"
        })
    }
}

/// Returns the normal form of a path.
fn normalised(path: &str) -> Key {
    let is_dotless = |rest: &str| rest.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let is_normal = |rest: &str| rest.is_empty() || is_dotless(rest);
    if !path.contains('%') && path.strip_prefix('/').is_some_and(is_normal) {
        return path.into();
    }
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for segment in path.split('/').map(decoded) {
        match &*segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    [b"/", &*segments.join(&b'/')].concat().into()
}

/// Decodes a segment, except for `/` and `%`: decoding these would change the path.
fn decoded(segment: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(segment.len());
    for byte in percent_decode_str(segment) {
        match byte {
            b'/' => decoded.extend_from_slice(b"%2F"),
            b'%' => decoded.extend_from_slice(b"%25"),
            byte => decoded.push(byte),
        }
    }
    decoded
}

/// Uses the key that a closure returns for an extension of the request, such as the user that an outer layer has
/// authenticated. If the closure returns `None`, the request passes without a limit.
///
/// A request without the extension is refused with an error (500 over HTTP) that names its type: the layer that inserts
/// the extension is missing, or is inside this one. If that layer inserts the extension for some requests only, such as
/// those of logged-in users, add `.or(client_ip())`, or make it [`optional`](Extractor::optional).
///
/// ```
/// use tower_distributed::extract::extension;
/// use tower_distributed::{Extracted, KeyExtractor};
///
/// #[derive(Clone)]
/// struct User(u64); // inserted by the authentication
///
/// let by_user = extension(|user: &User| user.0);
/// let mut request = http::Request::new(());
/// assert!(matches!(by_user.extract(&request), Extracted::Ready(Err(_))));
/// request.extensions_mut().insert(User(7));
/// assert_eq!(by_user.extract(&request), Some("7".into()));
/// ```
pub fn extension<T, F, K>(key: F) -> Extractor<Extension<T, F>>
where
    F: Fn(&T) -> K,
    K: IntoKey,
{
    Extractor(Extension {
        key,
        of: PhantomData,
    })
}

/// See [`extension`].
#[derive_where(Clone; F)]
pub struct Extension<T, F> {
    key: F,
    of: PhantomData<fn(&T)>,
}

impl<B, T, F, K> KeyExtractor<Request<B>> for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K,
    K: IntoKey,
{
    fn extract(&self, request: &Request<B>) -> Extracted {
        let extension = request
            .extensions()
            .get::<T>()
            .ok_or_else(Error::no_extension::<T>);
        Extracted::Ready(extension.and_then(|extension| (self.key)(extension).into_key()))
    }
}

debug!(Extension<T, F>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_path_have_one_key() {
        for path in [
            "/document/42",
            "/document/%34%32",
            "//document/./42/",
            "/document/x/../42",
            "/%64ocument/42",
        ] {
            assert_eq!(normalised(path), "/document/42".into(), "{path}");
        }
        for path in ["/", "", "//", "/.", "/a/..", "/..", "/../.."] {
            assert_eq!(normalised(path), "/".into(), "{path}");
        }
        assert_eq!(normalised("/%zz"), normalised("/%25zz"));
        assert_eq!(normalised("/%2e%2E/a"), "/a".into());
    }

    #[test]
    fn other_paths_have_other_keys() {
        let paths = [
            "/a/b", "/a%2Fb", "/a%252Fb", "/a", "/A", "/a%00", "/a/b/c", "/%ff", "/a%20b", "/a+b",
        ];
        for (n, one) in paths.iter().enumerate() {
            for other in &paths[n + 1..] {
                assert_ne!(normalised(one), normalised(other), "{one} {other}");
            }
        }
        assert_eq!(normalised("/a%2fb"), normalised("/a%2Fb"));
    }
}
