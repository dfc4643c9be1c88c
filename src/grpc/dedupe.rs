//! Deduplication, set up for gRPC.

use http::{Request, Response};

use super::{Refuse, refuse};
use crate::{Dedupe, DedupeLayer, KeyExtractor, web};

/// A [`DedupeLayer`] for gRPC: a call was handled where its response [has no error](is_handled) in its head, refusals
/// are statuses, duplicates are refused with `ALREADY_EXISTS`. The handler gets a [`LeaseHandle`](crate::LeaseHandle)
/// of its claim as an extension.
///
/// ```
/// use tower_distributed::{Dedupe, DedupeLayer, Store, extract, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let day = std::time::Duration::from_secs(86_400);
/// let orders = Dedupe::exact(&Store::in_memory(), "orders").remember_for(day).build()?;
/// let once = grpc::dedupe(orders, extract::header("x-order-id")?);
/// # let _: DedupeLayer<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, std::convert::Infallible, _> = once.clone();
/// # Ok(()) }
/// ```
#[must_use]
pub fn dedupe<B, B2, E>(
    dedupe: Dedupe,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> DedupeLayer<Request<B>, Response<B2>, E, Refuse> {
    DedupeLayer::new(dedupe, key)
        .success(|outcome| is_handled(outcome))
        .on_lease(web::InsertLease)
        .reject_with(refuse())
}

/// Decides for a [`DedupeLayer`](crate::DedupeLayer) whether an item was handled: the head of the response has no
/// error status. This is where tonic puts the error of a unary call.
#[must_use]
pub fn is_handled<B, E>(outcome: &Result<Response<B>, E>) -> bool {
    outcome.as_ref().is_ok_and(|response| {
        let status = response.headers().get("grpc-status");
        response.status().is_success() && status.is_none_or(|status| status == "0")
    })
}
