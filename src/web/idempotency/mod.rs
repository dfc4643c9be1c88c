//! `Idempotency-Key`: the same request again gets the same response again.

mod layer;
mod record;
mod service;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::layer::{IdempotencyBuilder, IdempotencyLayer};
pub use self::service::IdempotencyService;

use crate::response::Responses;
use crate::{KeyExtractor, Store};
use http::Request;

use crate::layer::key::DynKey;
use crate::primitive::dedupe::Replays;

/// A layer by which a client may repeat a request without its being handled twice: as
/// draft-ietf-httpapi-idempotency-key-header says it.
///
/// Those who send a POST or PATCH with an `Idempotency-Key` are answered as follows. All else passes.
///
/// | the key | |
/// |---|---|
/// | is new | The request is handled, and its response is kept if it is [final](IdempotencyBuilder::keep_when). |
/// | was used for the same request | The response that was kept, with `idempotency-replayed: ?1` (a boolean of RFC 9651). |
/// | was used for another request | 422 |
/// | is in use by a request that is being handled | 409 with `Retry-After` |
/// | is missing | The request passes; or 400, if it is [required](IdempotencyBuilder::required). |
/// | is empty, longer than 255 bytes, there several times, or has characters that are not visible ASCII | 400 |
///
/// **The principal** says whose keys they are: the user, tenant or API key that was *authenticated*, which the extractor takes
/// from the request, such as from an extension that a layer outside of this one has put there. It is part of what a response
/// is kept under, so nobody gets the response to another's request, whatever key is guessed. Requests without a principal
/// (`None`) pass and are handled each time: nothing is kept that could be anybody's.
///
/// A request is the same if its method, host, path, query, `Content-Type` and body are. In routers that axum nests the path is
/// without the prefix: give each its own name. The body is read before the request is
/// handled, [up to a length](IdempotencyBuilder::largest_request); beyond it the answer is 413.
///
/// ```
/// use axum::{Router, extract::Request, routing::post};
/// use tower_distributed::{Store, web};
///
/// #[derive(Clone)]
/// struct User(u64); // inserted by the layer that authenticates, outside of this one
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let user = |request: &Request| request.extensions().get::<User>().map(|user| user.0);
/// let once = web::idempotency(&Store::in_memory(), "payments", user).required(true).build()?;
/// let app: Router = Router::new().route("/payments", post(async || "paid")).layer(once);
/// # Ok(()) }
/// ```
///
/// # What holds
///
/// The claim on a key is a [claim](crate::dedupe) of a message: it is given back after a failure or a panic, and runs out after
/// a crash. A request whose client goes away is handled to its end, in a task of its own, and its response kept. A request may be handled twice where a process dies
/// between handling it and keeping the response, or stands still for longer than the [time to
/// live](IdempotencyBuilder::ttl); the latter is told by the event `claim_lost`. While the store is away, requests with a key
/// are refused with 503.
///
/// Responses are kept in Redis as they are, header fields and body, for [a day](IdempotencyBuilder::remember_for). A response
/// whose body is [too large](IdempotencyBuilder::largest_response) to be kept, or fails midway, is sent; whoever repeats its
/// request gets a 409.
pub fn idempotency<B>(
    store: &Store,
    name: &str,
    principal: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> IdempotencyBuilder<B> {
    IdempotencyBuilder::new(store, name, Arc::new(principal))
}

/// What services share.
struct Shared<B> {
    principal: DynKey<Request<B>>,
    replays: Arc<Replays>,
    responses: Responses,
    is_required: bool,
    largest_request: usize,
}

const DAY: Duration = Duration::from_secs(86_400);

impl<B> fmt::Debug for Shared<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("is_required", &self.is_required).finish_non_exhaustive()
    }
}
