//! Keys from the path of a request.

use std::fmt;
use std::sync::Arc;

use http::{Extensions, Request, Uri};

use super::combinators;
use crate::{Extracted, Key, KeyExtractor};

type ReadUri = Arc<dyn Fn(&Extensions) -> Option<&Uri> + Send + Sync>;

/// Whose path it is: that of a URI among the request's extensions, or of the request.
#[derive(Clone, Default)]
struct Target(Option<ReadUri>);

impl Target {
    fn by<T: Send + Sync + 'static>(read: impl Fn(&T) -> &Uri + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(move |extensions| extensions.get::<T>().map(&read))))
    }

    /// The URI that the client has sent, where that is known.
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

/// By the path, decoded and normalised: requests that a service may take for the same have the same key.
///
/// Percent-encoded characters are decoded, but for `/` and `%`; empty and `.` segments are left out, and `..` takes back
/// the segment before. So `/document/42`, `/document/%34%32` and `//document/./42/` have one key.
///
/// axum takes the prefix off the path in a nested router. With the feature `axum` the path is the whole one nevertheless;
/// without it, say where it is: [`uri`](Path::uri).
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
    /// By the URI that is among the request's extensions as a `T`, where there is one, rather than the request's own.
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

/// A path in the one form that stands for all of its spellings.
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

/// A segment, decoded but for what would make it another one: `/` and `%` stay encoded.
fn decoded(segment: &str) -> Vec<u8> {
    let bytes = segment.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = |offset: usize| char::from(*bytes.get(at + offset)?).to_digit(16);
        let (byte, length) = match (byte, hex(1), hex(2)) {
            (b'%', Some(high), Some(low)) => ((high * 16 + low) as u8, 3),
            (byte, ..) => (byte, 1),
        };
        match byte {
            b'/' => decoded.extend_from_slice(b"%2F"),
            b'%' => decoded.extend_from_slice(b"%25"),
            byte => decoded.push(byte),
        }
        at += length;
    }
    decoded
}

/// By the path and the query as they were sent: what [`shared_get`](super::shared_get) goes by.
///
/// In routers that axum nests it is the whole path as well with the feature `axum`; without it, say where it is:
/// [`uri`](PathAndQuery::uri). Else `/v1/prices` and `/v2/prices` share a key.
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
    /// By the URI that is among the request's extensions as a `T`, where there is one, rather than the request's own.
    /// As [`Path::uri`].
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

/// By the route that axum has matched, such as `/document/{id}`, whatever the id is. Where axum has matched none, as outside
/// of a router and in its fallback, by the empty text, so that no request passes.
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
