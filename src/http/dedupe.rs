//! The layer that does not handle again what was handled, set up for HTTP.

use http::{Request, Response, StatusCode};

use super::{InsertLease, Refuse, refuse};
use crate::dedupe_layer::{IsSuccess, OnDuplicate, RefuseDuplicates, Verdict};
use crate::{Dedupe, DedupeLayer};

/// A [`DedupeLayer`] for HTTP: an item was handled where the response [says so](IsHandled), the handler gets a
/// [`LeaseHandle`](crate::LeaseHandle) of its claim as an extension, refusals are responses.
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_distributed::{BloomFilter, Dedupe, Store, http as limits};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let seen = BloomFilter::new(&Store::in_memory(), "webhooks", 1_000_000, 0.0001)?;
/// let once = limits::dedupe(Dedupe::new(&seen)?, limits::header("webhook-id")?);
/// let app: Router = Router::new().route("/webhook", post(async || "handled")).layer(once);
/// # Ok(()) }
/// ```
///
/// A sender that takes anything but a 2xx for a failure, as those of webhooks do, had better be answered with one:
/// [`answer_duplicates`](DedupeLayer::answer_duplicates).
pub fn dedupe<K>(
    dedupe: Dedupe,
    key: K,
) -> DedupeLayer<K, IsHandled, RefuseDuplicates, (), InsertLease, Refuse> {
    DedupeLayer::new(dedupe, key).success(IsHandled).on_lease(InsertLease).reject_with(refuse())
}

/// What was handled: responses below 500, but for 429. So a request that is refused for what it is (400, say) is not
/// handled again either.
#[derive(Clone, Copy, Debug, Default)]
pub struct IsHandled;

impl<B, E> IsSuccess<Response<B>, E> for IsHandled {
    fn is_success(&self, outcome: &Result<Response<B>, E>) -> bool {
        outcome.as_ref().is_ok_and(|response| {
            let status = response.status();
            !status.is_server_error() && status.as_u16() < 600 && status != StatusCode::TOO_MANY_REQUESTS
        })
    }
}

/// Lets duplicates pass to the handler, with a [`Duplicate`] among their extensions; for
/// [`on_duplicate`](DedupeLayer::on_duplicate).
#[derive(Clone, Copy, Debug, Default)]
pub struct MarkDuplicate;

/// Among the extensions of a request whose item was handled before, by what the filter says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duplicate;

impl<B, Res> OnDuplicate<Request<B>, Res> for MarkDuplicate {
    fn on_duplicate(&self, mut request: Request<B>) -> Verdict<Request<B>, Res> {
        request.extensions_mut().insert(Duplicate);
        Verdict::Pass(request)
    }
}
