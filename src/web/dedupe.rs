//! The layer that does not handle again what was handled, set up for HTTP.

use http::{HeaderValue, Request, Response};

use super::InsertLease;
use crate::layer::dedupe::{DuplicateAction, Evidence, IsSuccess, OnDuplicate};
use crate::response::{Refuse, refuse};
use crate::{Dedupe, DedupeLayer, KeyExtractor};

/// A [`DedupeLayer`] for HTTP: an item was handled where the response is a [success](IsHandled), the handler gets a
/// [`LeaseHandle`](crate::LeaseHandle) of its claim as an extension, refusals are responses.
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_distributed::{Dedupe, Store, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let week = std::time::Duration::from_secs(7 * 86_400);
/// let webhooks = Dedupe::exact(&Store::in_memory(), "webhooks").remember_for(week).build()?;
/// let once = web::dedupe(webhooks, extract::header("webhook-id")?);
/// let app: Router = Router::new().route("/webhook", post(async || "handled")).layer(once);
/// # Ok(()) }
/// ```
///
/// # What a sender gets for a duplicate
///
/// Those who send webhooks send again what is not answered by a 2xx. So a duplicate that was [looked
/// up](DedupeLayer::confirm_duplicate), or is known in [exact mode](Dedupe::exact), is
/// [acknowledged](AcknowledgeDuplicates): 200, `duplicate: ?1`, no body. One that is known by a filter alone is refused with
/// 409: if the filter is wrong, a 200 would lose the message silently. What is being handled elsewhere is refused with 409 and `Retry-After`. [`refuse_duplicates`](DedupeLayer::refuse_duplicates) refuses all duplicates.
///
/// # Who may claim an id
///
/// While a message is being handled, others with its id are refused. So put what authenticates the sender *outside* of this
/// layer: somebody who guesses an id could keep the genuine message waiting as long as the forged one is at work. What the
/// handler refuses is no success, and suppresses nothing.
///
/// Where several senders share the layer, make the sender that was authenticated a part of the key, or one of them can use up
/// the ids of another:
///
/// ```
/// # use axum::extract::Request;
/// # use tower_distributed::{Dedupe, Store, extract, web};
/// #[derive(Clone)]
/// struct Sender(String); // inserted by the layer that authenticates, outside of this one
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// # let day = std::time::Duration::from_secs(86_400);
/// # let webhooks = Dedupe::exact(&Store::in_memory(), "webhooks").remember_for(day).build()?;
/// let sender = |request: &Request| request.extensions().get::<Sender>().map(|sender| sender.0.clone());
/// let once = web::dedupe(webhooks, (sender, extract::header("webhook-id")?));
/// let app: axum::Router = axum::Router::new().layer(once);
/// # Ok(()) }
/// ```
#[must_use]
pub fn dedupe<B, B2: Default, E>(
    dedupe: Dedupe,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> DedupeLayer<Request<B>, Response<B2>, E, Refuse> {
    DedupeLayer::new(dedupe, key)
        .success(IsHandled)
        .on_duplicate(AcknowledgeDuplicates)
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// What was handled: responses of 2xx. Whatever else there is may be sent again: a 401 to a message that somebody forged, a
/// 404 before a route is deployed, a redirect, or a refusal of one of our own layers further inside.
///
/// To count other responses too, pass a closure to [`success`](DedupeLayer::success).
#[derive(Clone, Copy, Debug, Default)]
pub struct IsHandled;

impl<B, E> IsSuccess<Response<B>, E> for IsHandled {
    fn is_success(&self, outcome: &Result<Response<B>, E>) -> bool {
        outcome.as_ref().is_ok_and(|response| response.status().is_success())
    }
}

/// Answers duplicates that were [looked up](DedupeLayer::confirm_duplicate) by 200 with `duplicate: ?1` (a boolean of RFC 9651)
/// and no body; refuses those that are known by the filter alone. The default of [`dedupe`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AcknowledgeDuplicates;

impl<Req, B: Default> OnDuplicate<Req, Response<B>> for AcknowledgeDuplicates {
    fn on_duplicate(&self, _: Req, evidence: Evidence) -> DuplicateAction<Req, Response<B>> {
        if evidence == Evidence::Filter {
            return DuplicateAction::Refuse;
        }
        let mut response = Response::new(B::default());
        response.headers_mut().insert("duplicate", HeaderValue::from_static("?1"));
        DuplicateAction::Answer(response)
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
    fn on_duplicate(&self, mut request: Request<B>, _: Evidence) -> DuplicateAction<Request<B>, Res> {
        request.extensions_mut().insert(Duplicate);
        DuplicateAction::Pass(request)
    }
}
