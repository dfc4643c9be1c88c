//! The deduplication layer, set up for HTTP.

use http::{HeaderValue, Request, Response};

use super::InsertLease;
use crate::dedupe::layer::{DuplicateAction, Evidence};
use crate::response::{Refuse, refuse};
use crate::{Dedupe, DedupeLayer, KeyExtractor};

/// Creates a [`DedupeLayer`] for HTTP.
///
/// An item was handled if the response is a [success](is_handled). The handler gets a
/// [`LeaseHandle`](crate::LeaseHandle) of its claim as an extension. Refusals are responses.
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
/// # The response to a duplicate
///
/// Senders of webhooks repeat a message until it is answered with a 2xx. The layer answers:
///
/// | the item | response |
/// |---|---|
/// | was handled, by [exact mode](Dedupe::exact) or by [`confirm_duplicate`](DedupeLayer::confirm_duplicate) | 200 with `duplicate: ?1` and no body: the duplicate is [acknowledged](acknowledge_duplicate) |
/// | was handled, by a filter only | 409: if the filter is wrong, a 200 would lose the message silently |
/// | is being handled elsewhere | 409 with `Retry-After` |
///
/// [`on_duplicate`](DedupeLayer::on_duplicate) sets another rule, for example that a repeated order gets 409 rather
/// than 200:
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_distributed::dedupe::DuplicateAction;
/// use tower_distributed::{Dedupe, Store, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let week = std::time::Duration::from_secs(7 * 86_400);
/// let orders = Dedupe::exact(&Store::in_memory(), "orders").remember_for(week).build()?;
/// let once = web::dedupe(orders, extract::header("x-order-id")?).on_duplicate(|_, _| DuplicateAction::Refuse);
/// let app: Router = Router::new().route("/orders", post(async || "placed")).layer(once);
/// # Ok(()) }
/// ```
///
/// # A sender that gives up
///
/// Senders of webhooks wait for some seconds. If the handler may take longer, call [`go_on`](DedupeLayer::go_on), so that it
/// ends even if the sender has left, and the next attempt is a duplicate. Otherwise each attempt is begun anew, and none ends.
///
/// # Authenticate the sender first
///
/// While a message is being handled, other messages with the same id are refused. So put the layer that
/// authenticates the sender *outside* of this layer. Otherwise a sender that guesses an id can block the genuine
/// message while the forged one is handled. If the handler refuses the forged message, this is not a success, and
/// the id is not a duplicate.
///
/// If several senders share the layer, make the authenticated sender a part of the key. Otherwise one sender can
/// use up the ids of another:
///
/// ```
/// # use tower_distributed::{Dedupe, Store, extract, web};
/// #[derive(Clone)]
/// struct Sender(String); // inserted by the layer that authenticates, outside of this one
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// # let day = std::time::Duration::from_secs(86_400);
/// # let webhooks = Dedupe::exact(&Store::in_memory(), "webhooks").remember_for(day).build()?;
/// let sender = extract::extension(|sender: &Sender| sender.0.clone());
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
        .success(|outcome| is_handled(outcome))
        .on_duplicate(|request, evidence| acknowledge_duplicate(request, evidence))
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// Returns whether an item was handled: its response has a 2xx. For [`success`](DedupeLayer::success), and the default
/// of [`dedupe`].
///
/// After every other response the item can be sent again: a 401 for a forged message, a 404 before a route is
/// deployed, a redirect, or a refusal of one of this crate's layers further inside. To accept other responses too,
/// pass a closure to [`success`](DedupeLayer::success).
#[must_use]
pub fn is_handled<B, E>(outcome: &Result<Response<B>, E>) -> bool {
    outcome
        .as_ref()
        .is_ok_and(|response| response.status().is_success())
}

/// Answers certain duplicates with 200, and refuses the others. The default of [`dedupe`].
///
/// A duplicate is certain by [exact mode](Dedupe::exact) or by
/// [`confirm_duplicate`](DedupeLayer::confirm_duplicate). The response has the header `duplicate: ?1` (a boolean of
/// RFC 9651) and no body. A duplicate that only the filter reports is refused.
#[must_use]
pub fn acknowledge_duplicate<Req, B: Default>(
    _: Req,
    evidence: Evidence,
) -> DuplicateAction<Req, Response<B>> {
    if evidence == Evidence::Filter {
        return DuplicateAction::Refuse;
    }
    let mut response = Response::new(B::default());
    response
        .headers_mut()
        .insert("duplicate", HeaderValue::from_static("?1"));
    DuplicateAction::Answer(response)
}

/// The request extension that [`mark_duplicate`] inserts: the item was handled before. It may be wrong if only a
/// filter reports the duplicate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duplicate;

/// Passes duplicates to the handler, with [`Duplicate`] as an extension. Pass it to
/// [`on_duplicate`](DedupeLayer::on_duplicate).
#[must_use]
pub fn mark_duplicate<B, Res>(
    mut request: Request<B>,
    _: Evidence,
) -> DuplicateAction<Request<B>, Res> {
    request.extensions_mut().insert(Duplicate);
    DuplicateAction::Pass(request)
}
