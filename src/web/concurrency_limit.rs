//! Concurrency limits, set up for HTTP.

use http::Request;
use http_body::Body;

use super::InsertLease;
use crate::response::{Refuse, UntilBodyEnd, refuse};
use crate::{ConcurrencyLimitLayer, KeyExtractor, WaitGroup};

/// A [`ConcurrencyLimitLayer`] for HTTP: permits are held to the end of the response body, refusals are responses.
///
/// A body that makes no progress for 60 s gives its permit back: see [`UntilBodyEnd`], which sets other limits. The
/// handler gets a [`LeaseHandle`](crate::LeaseHandle) as an extension: it can watch its permit, and take it along.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_distributed::{Store, WaitGroup, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
/// let limit = web::concurrency_limit(exports, extract::client_ip()).max_wait(Duration::from_secs(10));
/// let app: Router = Router::new().route("/export", get(async || "all of it")).layer(limit);
/// # Ok(()) }
/// ```
#[must_use]
pub fn concurrency_limit<B: Body + 'static>(
    group: WaitGroup,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> ConcurrencyLimitLayer<Request<B>, UntilBodyEnd, Refuse> {
    let layer = ConcurrencyLimitLayer::new(group, key).watch_no_body();
    #[cfg(feature = "axum")]
    let layer = layer.watch_body_of_type(axum::body::Body::new);
    layer
        .hold(UntilBodyEnd::default())
        .on_lease(InsertLease)
        .reject_with(refuse())
}
