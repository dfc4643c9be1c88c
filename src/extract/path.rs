//! Keys from the path of a request.

use std::fmt;
use std::sync::Arc;

use http::{Extensions, Request, Uri};
use percent_encoding::percent_decode_str;

use super::combinators;
use crate::{Extracted, Key, KeyExtractor};

type ReadUri = Arc<dyn Fn(&Extensions) -> Option<&Uri> + Send + Sync>;

/// The URI whose path is used: one among the request's extensions, or the request's own.
#[derive(Clone, Default)]
struct Target(Option<ReadUri>);

impl Target {
    fn by<T: Send + Sync + 'static>(read: impl Fn(&T) -> &Uri + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(move |extensions| extensions.get::<T>().map(&read))))
    }

    /// Returns the URI that the client has sent, if it is known.
    fn uri<'a, B>(&self, request: &'a Request<B>) -> &'a Uri {
        let extensions = request.extensions();
        let original = match &self.0 {
            Some(read) => read(extensions),
            #[cfg(feature = "axum")]
            None => extensions.get::<axum::extract::OriginalUri>().map(|original| &original.0),
            #[cfg(not(feature = "axum"))]
            None => None,
        };
        original.unwrap_or(request.uri())
    }
}

/// Uses the path as the key, decoded and normalised, so that different spellings of a path have one key.
///
/// Percent-encoded characters are decoded, except `/` and `%`. Empty and `.` segments are removed, and `..` removes the
/// segment before it. So `/document/42`, `/document/%34%32` and `//document/./42/` have one key.
///
/// A nested axum router sees the path without its prefix. With the feature `axum` this extractor uses the whole path;
/// without the feature, say where the whole URI is with [`uri`](Path::uri).
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::path};
///
/// let request = http::Request::get("/document/%34%32?draft=1").body(()).unwrap();
/// assert_eq!(path().extract(&request), Some("/document/42".into()));
/// ```
#[must_use]
pub fn path() -> Path {
    Path(Target::default())
}

/// See [`path`].
#[derive(Clone)]
pub struct Path(Target);

combinators!(Path);

impl Path {
    /// Uses the URI in an extension of type `T`, if the request has one, rather than the request's own.
    ///
    /// ```
    /// use axum::extract::OriginalUri;
    /// use tower_distributed::extract::path;
    ///
    /// path().uri(|uri: &OriginalUri| &uri.0);
    /// ```
    #[must_use]
    pub fn uri<T: Send + Sync + 'static>(self, read: impl Fn(&T) -> &Uri + Send + Sync + 'static) -> Self {
        Self(Target::by(read))
    }
}

impl<B> KeyExtractor<Request<B>> for Path {
    fn extract(&self, request: &Request<B>) -> Extracted {
        normalised(self.0.uri(request).path()).into()
    }
}

/// Returns the one form of all spellings of a path.
fn normalised(path: &str) -> Key {
    let is_plain = |path: &str| {
        let rest = path.strip_prefix('/');
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.split('/').all(|part| !matches!(part, "" | "." | ".."))
        })
    };
    if !path.contains('%') && is_plain(path) {
        return path.into();
    }
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for segment in path.split('/') {
        match &*decoded(segment) {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment.to_vec()),
        }
    }
    let mut whole = Vec::with_capacity(path.len() + 1);
    for segment in &segments {
        whole.push(b'/');
        whole.extend_from_slice(segment);
    }
    if whole.is_empty() { "/".into() } else { Key::from(whole.as_slice()) }
}

/// Decodes a segment, except for `/` and `%`, which would make it another path.
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

/// Uses the path and the query as the key, as they were sent. [`shared_get`](super::shared_get) uses it.
///
/// In a nested axum router it uses the whole path with the feature `axum`. Without the feature, say where the whole URI is
/// with [`uri`](PathAndQuery::uri); otherwise `/v1/prices` and `/v2/prices` share a key.
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::path_and_query};
///
/// let request = http::Request::get("https://example.com/prices?of=tea").body(()).unwrap();
/// assert_eq!(path_and_query().extract(&request), Some("/prices?of=tea".into()));
/// ```
#[must_use]
pub fn path_and_query() -> PathAndQuery {
    PathAndQuery(Target::default())
}

/// See [`path_and_query`].
#[derive(Clone)]
pub struct PathAndQuery(Target);

combinators!(PathAndQuery);

impl PathAndQuery {
    /// Uses the URI in an extension of type `T`, if the request has one, rather than the request's own. See [`Path::uri`].
    #[must_use]
    pub fn uri<T: Send + Sync + 'static>(self, read: impl Fn(&T) -> &Uri + Send + Sync + 'static) -> Self {
        Self(Target::by(read))
    }
}

impl<B> KeyExtractor<Request<B>> for PathAndQuery {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let target = self.0.uri(request).path_and_query();
        Key::from(target.map_or("/", |target| target.as_str())).into()
    }
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
pub fn matched_path() -> MatchedPath {
    MatchedPath
}

/// See [`matched_path`].
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
pub struct MatchedPath;

#[cfg(feature = "axum")]
combinators!(MatchedPath);

#[cfg(feature = "axum")]
impl<B> KeyExtractor<Request<B>> for MatchedPath {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let matched = request.extensions().get::<axum::extract::MatchedPath>();
        Key::from(matched.map_or("", |matched| matched.as_str())).into()
    }
}

macro_rules! debug {
    ($($extractor:ident)*) => {$(
        impl fmt::Debug for $extractor {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($extractor))
            }
        }
    )*};
}
debug! { Path PathAndQuery }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_path_have_one_key() {
        for path in
            ["/document/42", "/document/%34%32", "//document/./42/", "/document/x/../42", "/%64ocument/42"]
        {
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
        let paths = ["/a/b", "/a%2Fb", "/a%252Fb", "/a", "/A", "/a%00", "/a/b/c", "/%ff", "/a%20b", "/a+b"];
        for (n, one) in paths.iter().enumerate() {
            for other in &paths[n + 1..] {
                assert_ne!(normalised(one), normalised(other), "{one} {other}");
            }
        }
        assert_eq!(normalised("/a%2fb"), normalised("/a%2Fb"));
    }
}
