//! The layer and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode, response};
use tower_layer::Layer;

use super::record::FORMAT;
use super::service::IdempotencyService;
use super::{DAY, Shared};
use crate::layer::key::DynKey;
use crate::primitive::dedupe::Replays;
use crate::response::Responses;
use crate::{Error, Store};

/// Builds an [`IdempotencyLayer`]. See [`idempotency`](super::idempotency()).
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::post};
/// use tower_distributed::{Store, extract, web};
///
/// #[derive(Clone)]
/// struct User(u64); // inserted by the layer that authenticates, outside of this one
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let user = extract::extension(|user: &User| user.0);
/// let once = web::idempotency(&Store::in_memory(), "payments", user)
///     .required(true)                                // 400 without an `Idempotency-Key`
///     .remember_for(Duration::from_secs(7 * 86_400))
///     .largest_request(64 << 10)                     // 413 above 64 KiB
///     .largest_response(64 << 10)                    // a larger response is sent, but not stored
///     .keep_when(|parts| parts.status.is_success())  // after other responses the payment can be repeated
///     .ttl(Duration::from_secs(60))                  // a crashed process blocks a key for 60 s
///     .build()?;
/// let app: Router = Router::new().route("/payments", post(async || "paid")).layer(once);
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct IdempotencyBuilder<B> {
    store: Store,
    name: String,
    principal: DynKey<Request<B>>,
    ttl: Duration,
    remember_for: Duration,
    responses: Responses,
    is_required: bool,
    largest_request: usize,
}

/// A [`Layer`] that answers a repeated request with the stored response. See [`idempotency`](super::idempotency()).
pub struct IdempotencyLayer<B> {
    shared: Arc<Shared<B>>,
}

/// Returns whether a response is final: 2xx, 3xx, and 4xx except those that may change when the request is
/// repeated.
fn is_final(parts: &response::Parts) -> bool {
    let passes = [
        StatusCode::UNAUTHORIZED,
        StatusCode::PROXY_AUTHENTICATION_REQUIRED,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::CONFLICT,
        StatusCode::LOCKED,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    let status = parts.status;
    let is_of_these = status.is_success() || status.is_redirection() || status.is_client_error();
    is_of_these && !passes.contains(&status)
}

impl<B> IdempotencyBuilder<B> {
    pub(super) fn new(store: &Store, name: &str, principal: DynKey<Request<B>>) -> Self {
        Self {
            store: store.clone(),
            name: name.to_owned(),
            principal,
            ttl: Duration::from_secs(30),
            remember_for: DAY,
            // No limit: with a limit, a response could be left unread under load, and then it could not be replayed.
            responses: Responses::default().share_when(is_final).max_buffered(usize::MAX),
            is_required: false,
            largest_request: 1024 * 1024,
        }
    }

    /// Sets how long a response is stored, 1 second to 365 days. Default: 1 day.
    pub fn remember_for(mut self, span: Duration) -> Self {
        self.remember_for = span;
        self
    }

    /// Sets whether a POST or PATCH of a principal without an `Idempotency-Key` is refused with 400. Default:
    /// `false`, the request passes.
    pub fn required(mut self, required: bool) -> Self {
        self.is_required = required;
        self
    }

    /// Sets the maximum size of a request body in bytes. Default: 1 MiB. A request with a larger body is refused
    /// with 413.
    pub fn largest_request(mut self, bytes: usize) -> Self {
        self.largest_request = bytes;
        self
    }

    /// Sets the maximum size of a stored response body in bytes. Default: 1 MiB. A response with a larger body is
    /// sent, but not stored.
    pub fn largest_response(mut self, bytes: usize) -> Self {
        self.responses = self.responses.largest_body(bytes);
        self
    }

    /// Sets which responses are stored, by a closure from the head of a response. After other responses, the
    /// request can be handled again. Default: 2xx, 3xx, and 4xx except 401, 407, 408, 409, 423, 425 and 429.
    pub fn keep_when(mut self, keep: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.responses = self.responses.share_when(keep);
        self
    }

    /// Sets the time to live of a claim on a key, 10 ms to 1 day. Default: 30 s.
    ///
    /// After this time, a key that a crashed process claimed can be claimed again.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if a setting is out of range, or the name is not 1 to 64 of
    /// `A-Z a-z 0-9 - _ . /`.
    pub fn build(self) -> Result<IdempotencyLayer<B>, Error> {
        if !(Duration::from_secs(1)..=365 * DAY).contains(&self.remember_for) {
            return Err(Error::invalid(format!(
                "remember_for must be 1 s to 365 days, is {:?}",
                self.remember_for
            )));
        }
        let replays = Replays::open(&self.store, &self.name, FORMAT, self.ttl, self.remember_for)?;
        let shared = Shared {
            principal: self.principal,
            replays: Arc::new(replays),
            responses: self.responses,
            is_required: self.is_required,
            largest_request: self.largest_request,
        };
        Ok(IdempotencyLayer { shared: Arc::new(shared) })
    }
}

impl<S, B> Layer<S> for IdempotencyLayer<B> {
    type Service = IdempotencyService<S, B>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.shared))
    }
}

impl<B> Clone for IdempotencyLayer<B> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<B> fmt::Debug for IdempotencyLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("shared", &self.shared).finish()
    }
}

impl<B> fmt::Debug for IdempotencyBuilder<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
