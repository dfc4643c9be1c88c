//! The key extractor of what is asked for.

use std::fmt;
use std::sync::Arc;

use http::{Extensions, Request, Uri};

use crate::{Key, KeyExtractor};

/// By the path and the query, for [`single_flight`](super::single_flight), which adds method, scheme and host.
///
/// **In routers that axum nests, give it the [whole URI](PathAndQuery::uri)**: axum takes the prefix off the one that their
/// layers see, and `/v1/prices` and `/v2/prices` would share answers where they share a flight.
///
/// ```
/// use tower_distributed::{KeyExtractor, http::path_and_query};
///
/// let request = http::Request::get("https://example.com/prices?of=tea").body(()).unwrap();
/// assert_eq!(path_and_query().extract(&request), Some("/prices?of=tea".into()));
/// ```
#[must_use]
pub fn path_and_query() -> PathAndQuery {
    PathAndQuery { uri: None }
}

type ReadUri = Arc<dyn Fn(&Extensions) -> Option<&Uri> + Send + Sync>;

/// See [`path_and_query`].
#[derive(Clone)]
pub struct PathAndQuery {
    uri: Option<ReadUri>,
}

impl PathAndQuery {
    /// Goes by the URI that has been put among the request's extensions as a `T`, where there is one, rather than by
    /// the request's own.
    ///
    /// ```
    /// use axum::extract::OriginalUri;
    /// use tower_distributed::http::path_and_query;
    ///
    /// path_and_query().uri(|uri: &OriginalUri| &uri.0);
    /// ```
    #[must_use]
    pub fn uri<T: Send + Sync + 'static>(self, read: impl Fn(&T) -> &Uri + Send + Sync + 'static) -> Self {
        Self { uri: Some(Arc::new(move |extensions| extensions.get::<T>().map(&read))) }
    }
}

impl<B> KeyExtractor<Request<B>> for PathAndQuery {
    fn extract(&self, request: &Request<B>) -> Option<Key> {
        let original = self.uri.as_ref().and_then(|read| read(request.extensions()));
        let target = original.unwrap_or(request.uri()).path_and_query();
        Some(target.map_or("/", |target| target.as_str()).into())
    }
}

impl fmt::Debug for PathAndQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathAndQuery").finish_non_exhaustive()
    }
}
