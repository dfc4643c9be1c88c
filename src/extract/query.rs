//! Keys from the query of a request.

use std::borrow::Cow;

use http::Request;
use smallvec::SmallVec;

use super::combinators;
use super::digest::{Digest, plain};
use crate::{Extracted, KeyExtractor};

/// Uses the decoded value of a query parameter as the key, hashed unless it is [`plain`](Query::plain). A request without
/// the parameter [is refused](crate::Error::is_missing_part), unless it is [`optional`](Query::optional). A request that
/// repeats it is a [bad request](crate::Error::bad_request).
///
/// ```
/// use tower_distributed::{KeyExtractor, extract::query};
///
/// let request = http::Request::get("/search?tenant=acme%20inc&page=2").body(()).unwrap();
/// assert_eq!(query("tenant").plain().extract(&request), Some("acme inc".into()));
/// ```
#[must_use]
pub fn query(name: &str) -> Query {
    Query { name: name.into(), digest: Digest::default() }
}

/// See [`query`].
#[derive(Clone, Debug)]
pub struct Query {
    name: Box<str>,
    digest: Digest,
}

combinators!(Query);
plain!(Query);

impl<B> KeyExtractor<Request<B>> for Query {
    fn extract(&self, request: &Request<B>) -> Extracted {
        let query = request.uri().query().unwrap_or_default();
        let values: SmallVec<[Cow<'_, str>; 1]> = form_urlencoded::parse(query.as_bytes())
            .filter(|(name, _)| *name == *self.name)
            .map(|(_, value)| value)
            .collect();
        self.digest.key("query parameter", &self.name, values.iter().map(|value| value.as_bytes()))
    }
}
