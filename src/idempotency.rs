//! `Idempotency-Key`: a repeated request gets the stored response.

mod content;
mod fingerprint;
pub(crate) mod layer;
mod record;
mod service;
mod streams;
#[cfg(test)]
mod tests;
pub(crate) mod upload;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::layer::IdempotencyBuilder;

use http::{Method, Request};

use crate::dedupe::replay::Replays;
use crate::http::responses::Responses;
use crate::idempotency::fingerprint::Compare;
use crate::idempotency::record::KeyField;
use crate::idempotency::streams::Streams;
use crate::idempotency::upload::Limits;
use crate::layers::key::{DynKey, KeyExtractor};
use crate::store::Store;
use crate::store::detach::Detach;
use crate::store::failure::StoreFailurePolicy;

/// Returns the builder of a layer that lets clients repeat a request without handling it twice.
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_distributed::{Store, extract, web};
///
/// #[derive(Clone)]
/// struct User(u64); // inserted by an outer layer that authenticates
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let user = extract::extension(|user: &User| user.0);
/// let once = web::idempotency(&Store::in_memory(), "payments", user).required(true).build()?;
/// let app: Router = Router::new().route("/payments", post(async || "paid")).layer(once);
/// # Ok(()) }
/// ```
///
/// The layer follows draft-ietf-httpapi-idempotency-key-header. It applies to POST and PATCH requests, or to [other
/// methods](IdempotencyBuilder::methods), and reads their `Idempotency-Key`, or [another header
/// field](IdempotencyBuilder::header). Other requests pass.
///
/// | the key | response |
/// |---|---|
/// | is new | The request is handled. The response is stored if it is [final](IdempotencyBuilder::keep_when). |
/// | was used for the same request | The stored response, with `idempotency-replayed: ?1` (a boolean of RFC 9651). |
/// | was used for another request | 422. The text names the difference: the method, the target or the body. |
/// | is in use by a request that is being handled | 409 with `Retry-After`, or the response after a [wait](IdempotencyBuilder::max_wait) |
/// | was used, but the response was not stored, or is stored in a format that this version cannot read | 409 without `Retry-After`. The request is not handled again. |
/// | is missing | The request passes. If the key is [required](IdempotencyBuilder::required): 400. |
/// | is empty, longer than 255 bytes, sent more than once, or has a quote, a backslash or a character that is not visible ASCII | 400 |
///
/// # The principal
///
/// The principal is the *authenticated* user, tenant or API key that a key belongs to. The extractor takes it from the
/// request, for example from an extension that an outer layer inserts. A response is stored under the principal and the
/// key, so a client that guesses the key of another principal does not get the response. If a closure returns `None`,
/// the request passes and is handled each time, and its response is not stored. A request without a
/// [part](crate::extract) of the principal is refused.
///
/// # When two requests are the same
///
/// Two requests are the same if their method, host, path, query, `Content-Type` and body are the same. Differences in
/// spelling do not count: the case of the host and a port 80 or 443, the case and order of the parameters of
/// `Content-Type`, `charset=utf-8`, the boundary of a multipart body. [`compare_by`](IdempotencyBuilder::compare_by)
/// sets another rule.
///
/// In a nested router of axum, the whole path counts with the feature `axum`. Without the feature, the path lacks the
/// prefix: use a different name for each nested router.
///
/// # Streams
///
/// A response that is a stream is passed on as it arrives, and not stored. A response is a stream by its content type
/// (`text/event-stream`, `multipart/x-mixed-replace`, lines or sequences of JSON such as `application/x-ndjson`, gRPC),
/// or because of [`stream_when`](IdempotencyBuilder::stream_when). Its key counts as used from then on ([by
/// default](IdempotencyBuilder::confirm_streams)): a repeated request gets 409. If the client disconnects, the stream
/// ends.
///
/// An unknown length does not make a response a stream. So every other response is read to its end, or to
/// [`largest_response`](IdempotencyBuilder::largest_response), before its head is sent.
///
/// Trailers of a response are stored with it. Trailers of a request reach the handler as
/// [`RequestTrailers`](crate::web::RequestTrailers). With the feature `axum`, axum's body has them as well.
///
/// Header fields that apply to one exchange are not replayed: see [`Responses`](crate::response::Responses).
///
/// # Bounds
///
/// The body is read before the request is handled. A process holds at most [64 MiB](IdempotencyBuilder::max_buffered)
/// of bodies for each layer, so stalling clients cannot fill its memory:
///
/// | the request body | response |
/// |---|---|
/// | is larger than [1 MiB](IdempotencyBuilder::largest_request) | 413 |
/// | is not complete after [30 s](IdempotencyBuilder::read_timeout) | 408 |
/// | exceeds the memory left by other bodies | 503 with `Retry-After` |
///
/// # Guarantees
///
/// A request holds a [claim](crate::dedupe) on its key while it is handled. The claim is released after a failure
/// or a panic, and expires after a crash. If the client disconnects, the request is still handled in a
/// separate task, for [5 min](IdempotencyBuilder::max_detached) at most, and the response is stored.
/// [`Store::shutdown`] waits for such requests: call it after the server has drained, so that the next process does not
/// handle a repeated request at the same time.
///
/// A request may be handled twice in three cases:
///
/// * The process crashes after it handled the request and before it stored the response.
/// * The process is stopped for longer than the [ttl](IdempotencyBuilder::ttl). The event `claim_lost` reports it.
/// * The store cannot record the request, and the process ends before it can. The event `claim_not_confirmed` reports
///   it. Until then the process retries, and no other caller acquires the claim. A [shutdown](crate::Store::shutdown)
///   waits for these retries, and lists the unfinished ones, which keep their claims until the ttl.
///
/// While the store is unavailable, requests with a key are refused with 503, unless
/// [`on_store_failure`](IdempotencyBuilder::on_store_failure) is set.
///
/// Responses are stored in Redis unencrypted, with header fields and body. They are stored for one day, unless
/// [`remember_for`](IdempotencyBuilder::remember_for) is set. A response is sent but not stored if its body exceeds
/// [`largest_response`](IdempotencyBuilder::largest_response), fails midway or exceeds the
/// [memory](IdempotencyBuilder::max_buffered) left in the process or in the store. A repeated request then gets 409.
///
/// Versions of this crate that store responses in different formats can run side by side: a request that one of them
/// has handled is not handled again by the other.
pub fn idempotency<B>(
    store: &Store,
    name: &str,
    principal: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> IdempotencyBuilder<B> {
    IdempotencyBuilder::new(store, name, Arc::new(principal))
}

/// The settings of a service. Its clones share them.
pub struct Shared<B, R> {
    principal: DynKey<Request<B>>,
    replays: Arc<Replays>,
    away: StoreFailurePolicy<Arc<Replays>>,
    responses: Responses,
    detach: Detach,
    upload: Limits,
    is_required: bool,
    methods: Vec<Method>,
    key_field: KeyField,
    max_wait: Option<Duration>,
    compare: Compare,
    streams: Streams,
    reject: R,
}

const DAY: Duration = Duration::from_secs(86_400);

debug!(Shared<B, R>, is_required);
