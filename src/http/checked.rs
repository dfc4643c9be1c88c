//! Which requests may be answered with what others get.

use std::fmt;

use http::header::{
    AUTHORIZATION, COOKIE, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
    PROXY_AUTHORIZATION, RANGE, UPGRADE,
};
use http::{HeaderName, Method, Request};
use http_body::Body;

use super::shareable::any_directive;
use crate::{Key, KeyExtractor};

/// A request with one of these is about more than what is asked for.
const OF_ITS_OWN: [HeaderName; 10] = [
    AUTHORIZATION,
    PROXY_AUTHORIZATION,
    COOKIE,
    RANGE,
    IF_MATCH,
    IF_NONE_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    IF_RANGE,
    UPGRADE,
];

/// Whether a request asks for what all others would get, by its method and all that HTTP itself knows.
pub(super) fn may_be_shared<B: Body>(request: &Request<B>) -> bool {
    let headers = request.headers();
    matches!(*request.method(), Method::GET | Method::HEAD)
        && !OF_ITS_OWN.iter().any(|field| headers.contains_key(field))
        && !any_directive(headers, &["no-store", "no-cache"])
        && (request.body().is_end_stream() || request.body().size_hint().exact() == Some(0))
}

/// The keys of [`http::single_flight`](super::single_flight): those of another extractor, of requests alone that may be
/// shared. HEAD and GET have different ones.
#[derive(Clone)]
pub struct Checked<K>(pub(super) K);

impl<B: Body, K: KeyExtractor<Request<B>>> KeyExtractor<Request<B>> for Checked<K> {
    fn extract(&self, request: &Request<B>) -> Option<Key> {
        let key = self.0.extract(request).filter(|_| may_be_shared(request))?;
        Some(if request.method() == Method::HEAD { [b"HEAD ", key.as_bytes()].concat().into() } else { key })
    }
}

impl<K> fmt::Debug for Checked<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checked").finish_non_exhaustive()
    }
}
