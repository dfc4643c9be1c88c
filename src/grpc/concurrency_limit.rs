//! Concurrency limits, set up for gRPC.

use http::Request;
use http_body::Body;

use super::{Refuse, refuse};
use crate::response::UntilBodyEnd;
use crate::{ConcurrencyLimitLayer, KeyExtractor, WaitGroup, web};

/// A [`ConcurrencyLimitLayer`] for gRPC: a permit is held to the end of the call, which for a streaming call is the end of
/// its stream; refusals are statuses. The handler gets a [`LeaseHandle`](crate::LeaseHandle) as an extension.
///
/// A stream that is silent for 60 s goes on without its permit, which the event `body_outlived_lease` reports: see
/// [`UntilBodyEnd::idle_timeout`].
///
/// ```
/// use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup, extract, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
/// let limit = grpc::concurrency_limit(exports, extract::grpc_method());
/// # let _: ConcurrencyLimitLayer<http::Request<tonic::body::Body>, _, _> = limit.clone();
/// let server = tonic::transport::Server::builder().layer(limit);
/// # Ok(()) }
/// ```
#[must_use]
pub fn concurrency_limit<B: Body + 'static>(
    group: WaitGroup,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> ConcurrencyLimitLayer<Request<B>, UntilBodyEnd, Refuse> {
    web::concurrency_limit(group, key)
        .watch_body_of_type(tonic::body::Body::new)
        .reject_with(refuse())
}
