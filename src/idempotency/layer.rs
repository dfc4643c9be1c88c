//! The layer and its settings.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use derive_where::derive_where;
use http::{HeaderMap, Method, Request, StatusCode, request, response};
use tower_layer::Layer;

use crate::dedupe::replay::Replays;
use crate::error::Error;
use crate::http::refuse::{Refuse, refuse};
use crate::http::responses::Responses;
use crate::idempotency::fingerprint::Compare;
use crate::idempotency::record::{FORMAT, KeyField};
use crate::idempotency::streams::Streams;
use crate::idempotency::upload::Limits;
use crate::idempotency::{DAY, Shared};
use crate::layers::Layered;
use crate::layers::key::DynKey;
use crate::macros::{in_range, setters};
use crate::store::Store;
use crate::store::detach::{AFTER_CALLER, Detach};
use crate::store::failure::{StoreFailure, StoreFailurePolicy};

/// Builds an [`IdempotencyLayer`]. See [`idempotency`](super::idempotency()).
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::post};
/// use tower_distributed::{Store, extract, web};
///
/// #[derive(Clone)]
/// struct User(u64); // inserted by an outer layer that authenticates
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let user = extract::extension(|user: &User| user.0);
/// let once = web::idempotency(&Store::in_memory(), "payments", user)
///     .required(true)                                // 400 without an `Idempotency-Key`
///     .remember_for(Duration::from_secs(7 * 86_400))
///     .largest_request(64 << 10)                     // 413 above 64 KiB
///     .largest_response(64 << 10)                    // a larger response is sent, but not stored
///     .max_buffered(16 << 20)                        // 503 while the bodies of all requests exceed 8 MiB
///     .read_timeout(Duration::from_secs(10))         // 408 if the request body takes longer
///     .keep_when(|parts| parts.status.is_success())  // after other responses the payment can be repeated
///     .max_detached(Duration::from_secs(60))         // dropped 60 s after the client has disconnected
///     .ttl(Duration::from_secs(60))                  // a crashed process blocks a key for 60 s
///     .build()?;
/// let app: Router = Router::new().route("/payments", post(async || "paid")).layer(once);
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct IdempotencyBuilder<B, R = Refuse> {
    settings: Settings<B>,
    reject: R,
}

struct Settings<B> {
    store: Store,
    name: String,
    principal: DynKey<Request<B>>,
    ttl: Duration,
    remember_for: Duration,
    on_store_failure: StoreFailure,
    responses: Responses,
    is_required: bool,
    largest_request: usize,
    largest_response: usize,
    max_buffered: usize,
    read_timeout: Duration,
    max_detached: Duration,
    max_wait: Option<Duration>,
    methods: Vec<Method>,
    header: String,
    compare: Compare,
    streams: Streams,
}

/// A [`Layer`] that answers a repeated request with the stored response. See [`idempotency`](super::idempotency()).
#[derive_where(Clone)]
pub struct IdempotencyLayer<B, R = Refuse> {
    shared: Arc<Shared<B, R>>,
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
    is_of_these && !passes.contains(&status) && is_final_for_grpc(&parts.headers)
}

/// The same for a gRPC error in the head.
fn is_final_for_grpc(headers: &HeaderMap) -> bool {
    // OK, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE,
    // UNIMPLEMENTED
    const FINAL: [&str; 8] = ["0", "3", "5", "6", "7", "9", "11", "12"];
    headers
        .get("grpc-status")
        .is_none_or(|status| FINAL.iter().any(|code| status == code))
}

impl<B> IdempotencyBuilder<B> {
    pub(super) fn new(store: &Store, name: &str, principal: DynKey<Request<B>>) -> Self {
        let settings = Settings {
            store: store.clone(),
            name: name.to_owned(),
            principal,
            ttl: Duration::from_secs(30),
            remember_for: DAY,
            on_store_failure: StoreFailure::FailClosed,
            responses: Responses::default().share_when(is_final),
            is_required: false,
            largest_request: 1 << 20,
            largest_response: 1 << 20,
            max_buffered: 64 << 20,
            read_timeout: Duration::from_secs(30),
            max_detached: AFTER_CALLER,
            max_wait: None,
            methods: vec![Method::POST, Method::PATCH],
            header: "Idempotency-Key".to_owned(),
            compare: Compare::Parts,
            streams: Streams::default(),
        };
        Self {
            settings,
            reject: refuse(),
        }
    }
}

impl<B, R> IdempotencyBuilder<B, R> {
    /// Returns refusals as other responses, by a closure from [`Refusal`](crate::Refusal) to the response or another
    /// [`Reject`](crate::Reject). Default: [`response::refuse()`](refuse), problem documents.
    ///
    /// The response type is that of the inner service:
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::{Response, StatusCode};
    /// use tower_distributed::{Refusal, RefusalKind, Store, extract, web};
    ///
    /// fn sorry(refusal: Refusal) -> Response<Body> {
    ///     let mut response = Response::new(Body::from(refusal.to_string()));
    ///     *response.status_mut() = match refusal.kind() {
    ///         RefusalKind::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
    ///         RefusalKind::Duplicate | RefusalKind::InFlight => StatusCode::CONFLICT,
    ///         RefusalKind::BadRequest | RefusalKind::MissingPart => StatusCode::BAD_REQUEST,
    ///         _ => StatusCode::SERVICE_UNAVAILABLE,
    ///     };
    ///     response
    /// }
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let once = web::idempotency(&Store::in_memory(), "payments", extract::client_ip()).reject_with(sorry).build()?;
    /// let app: axum::Router = axum::Router::new().layer(once);
    /// # Ok(()) }
    /// ```
    pub fn reject_with<R2>(self, reject: R2) -> IdempotencyBuilder<B, R2> {
        IdempotencyBuilder {
            settings: self.settings,
            reject,
        }
    }

    /// Sets which responses are stored, by a closure from the head of a response. After other responses, the
    /// request can be handled again. Default: 2xx, 3xx, and 4xx except 401, 407, 408, 409, 423, 425 and 429.
    pub fn keep_when(
        mut self,
        keep: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.responses = self.settings.responses.share_when(keep);
        self
    }

    /// Sets which responses are streams in addition to those with a [stream's content
    /// type](super::idempotency()#streams), by a closure from the head of a response. Default: none.
    ///
    /// ```
    /// use tower_distributed::{Store, extract, web};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let once = web::idempotency(&Store::in_memory(), "chats", extract::client_ip())
    ///     .stream_when(|parts: &http::response::Parts| parts.headers.contains_key("x-accel-buffering"))
    ///     .confirm_streams(false) // a repeated request is handled again
    ///     .build()?;
    /// let app: axum::Router = axum::Router::new().layer(once);
    /// # Ok(()) }
    /// ```
    pub fn stream_when(
        mut self,
        is: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.streams.named = Some(Arc::new(is));
        self
    }

    /// Sets how requests are compared: by the bytes that a closure returns for a request and its body. Default: by
    /// method, host, path, query, `Content-Type` and body, see
    /// [here](super::idempotency()#when-two-requests-are-the-same).
    ///
    /// While two versions of a service compare requests differently, a request that the other version has handled gets
    /// 409.
    ///
    /// ```
    /// use tower_distributed::{Store, extract, web};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// // The body contains the time; the path identifies the payment.
    /// let once = web::idempotency(&Store::in_memory(), "payments", extract::client_ip())
    ///     .compare_by(|parts, _body| parts.uri.path().as_bytes().to_vec())
    ///     .build()?;
    /// let app: axum::Router = axum::Router::new().layer(once);
    /// # Ok(()) }
    /// ```
    pub fn compare_by(
        mut self,
        chosen: impl Fn(&request::Parts, &Bytes) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        self.settings.compare = Compare::By(Arc::new(chosen));
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if a setting is out of range, the name is not 1 to 64 of `A-Z a-z 0-9 - _ .
    /// /`, half of [`max_buffered`](Self::max_buffered) is less than [`largest_request`](Self::largest_request),
    /// [`header`](Self::header) is not a name of a header field, or [`methods`](Self::methods) is empty or contains a
    /// safe method.
    pub fn build(self) -> Result<IdempotencyLayer<B, R>, Error> {
        let Self { settings, reject } = self;
        settings.check()?;
        let (buffered, largest) = (settings.max_buffered, settings.largest_request);
        let responses = settings
            .responses
            .largest_body(settings.largest_response)
            .max_buffered(buffered);
        let room = responses.reading().up_to(buffered / 2);
        if room.most < largest {
            return Err(Error::invalid(format!(
                "max_buffered must be at least twice largest_request, 2 * {largest} bytes, is {buffered} bytes"
            )));
        }
        let open = |store: &Store| {
            Replays::open(
                store,
                &settings.name,
                FORMAT,
                settings.ttl,
                settings.remember_for,
            )
            .map(Arc::new)
        };
        let shared = Shared {
            replays: open(&settings.store)?,
            away: match settings.on_store_failure {
                StoreFailure::FailClosed => StoreFailurePolicy::FailClosed,
                StoreFailure::FailOpen => StoreFailurePolicy::FailOpen,
                StoreFailure::LocalShare { .. } | StoreFailure::CountedShare { .. } => {
                    StoreFailurePolicy::LocalShare(open(settings.store.local_share())?)
                }
            },
            principal: settings.principal,
            upload: Limits {
                largest,
                within: settings.read_timeout,
                room,
            },
            responses,
            detach: Detach::new(
                &settings.store,
                "idempotency",
                &settings.name,
                settings.max_detached,
            ),
            is_required: settings.is_required,
            methods: settings.methods,
            key_field: KeyField::new(settings.header)?,
            max_wait: settings.max_wait,
            compare: settings.compare,
            streams: settings.streams,
            reject,
        };
        Ok(IdempotencyLayer {
            shared: Arc::new(shared),
        })
    }
}

impl<B> Settings<B> {
    /// Checks the times and the methods.
    fn check(&self) -> Result<(), Error> {
        let span = Duration::from_secs(1)..=365 * DAY;
        in_range("remember_for", span, "1 s to 365 days", self.remember_for)?;
        for (setting, span) in [
            ("read_timeout", self.read_timeout),
            ("max_detached", self.max_detached),
        ] {
            let allowed = Duration::from_millis(1)..=DAY;
            in_range(setting, allowed, "1 ms to 1 day", span)?;
        }
        if self.methods.is_empty() {
            return Err(Error::invalid("methods must have at least one method"));
        }
        let is_safe = |method: &&Method| method.is_safe() || **method == Method::CONNECT;
        match self.methods.iter().find(is_safe) {
            Some(safe) => Err(Error::invalid(format!(
                "methods must have methods that change something, such as POST, PUT, PATCH or DELETE, has {safe}"
            ))),
            None => Ok(()),
        }
    }
}

setters! { IdempotencyBuilder<B, R>:
    /// Sets how long a response is stored, 1 second to 365 days. Default: 1 day.
    fn remember_for(span: Duration) => settings.remember_for = span;

    /// Sets the methods to which the layer applies; requests with other methods pass. Default: POST and PATCH. PUT and
    /// DELETE are idempotent by definition, but a repeated DELETE may get 404, and a late PUT may undo a later change.
    ///
    /// ```
    /// use http::Method;
    /// use tower_distributed::{Store, extract, web};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let once = web::idempotency(&Store::in_memory(), "orders", extract::client_ip())
    ///     .methods([Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
    ///     .header("X-Request-Token")                           // rather than `Idempotency-Key`
    ///     .max_wait(std::time::Duration::from_secs(5))         // for the first request, instead of 409 at once
    ///     .build()?;
    /// let app: axum::Router = axum::Router::new().layer(once);
    /// # Ok(()) }
    /// ```
    fn methods(methods: impl IntoIterator<Item = Method>) => settings.methods = methods.into_iter().collect();

    /// Sets the name of the header field with the key. Default: `Idempotency-Key`. Errors contain the name as it is set
    /// here.
    fn header(name: impl Into<String>) => settings.header = name.into();

    /// Sets how long a request waits for another request with the same key that is being handled, like
    /// [`DedupeLayer::max_wait`](crate::DedupeLayer::max_wait). Default: it does not wait and gets 409.
    ///
    /// After the wait, the request gets the stored response, or is handled if the other request has failed. A request
    /// that waits longer is refused as [`WaitedTooLong`](crate::RefusalKind::WaitedTooLong), 503. During the wait, its
    /// body counts as [buffered](Self::max_buffered).
    fn max_wait(longest: Duration) => settings.max_wait = Some(longest);

    /// Sets whether the key of a request counts as used once its response is a [stream](super::idempotency()#streams).
    /// Default: `true`, a repeated request gets 409. With `false`, the claim is released when the stream begins, and a
    /// repeated request is handled again, also while the stream runs.
    fn confirm_streams(confirm: bool) => settings.streams.confirms = confirm;

    /// Sets whether a request of a principal without a key is refused with 400. Default: `false`, the request passes.
    fn required(required: bool) => settings.is_required = required;

    /// Sets the maximum size of a request body in bytes. Default: 1 MiB. A request with a larger body is refused
    /// with 413.
    fn largest_request(bytes: usize) => settings.largest_request = bytes;

    /// Sets the maximum size of a stored response body in bytes. Default: 1 MiB. A response with a larger body is
    /// sent, but not stored.
    fn largest_response(bytes: usize) => settings.largest_response = bytes;

    /// Sets the maximum number of bytes of request and response bodies that a process holds for this layer. Default: 64
    /// MiB.
    ///
    /// A request body counts as it arrives, until the request is handled. A request whose body exceeds the bound is
    /// refused with 503 and `Retry-After`, before it is handled. Request bodies use at most half of the bytes, so that
    /// uploads leave memory for responses. A response body counts until it is stored. A response that exceeds the bound
    /// is sent, but not stored.
    fn max_buffered(bytes: usize) => settings.max_buffered = bytes;

    /// Sets how long the client may take to send the request body, 1 ms to 1 day. Default: 30 s. A request whose body
    /// is not complete by then is refused with 408.
    fn read_timeout(timeout: Duration) => settings.read_timeout = timeout;

    /// Sets how long a request is handled after its client has disconnected, 1 ms to 1 day. Default: 5 min.
    ///
    /// Then its handler is dropped, and its claim is released: a repeated request is handled again. The event
    /// `detached_given_up` reports it. [`Store::shutdown`] waits for requests whose clients have disconnected.
    fn max_detached(limit: Duration) => settings.max_detached = limit;

    /// Sets what to do with requests that have a key while the store is unavailable. Default:
    /// [`StoreFailure::FailClosed`], they are refused with 503.
    ///
    /// [`FailOpen`](StoreFailure::FailOpen) handles each of them, and stores no response.
    /// [`LocalShare`](StoreFailure::LocalShare) stores the responses in this process. With either setting, a request
    /// that is repeated in another process, or after the outage, is handled twice.
    fn on_store_failure(on_store_failure: StoreFailure) => settings.on_store_failure = on_store_failure;

    /// Sets the time to live of a claim on a key, 10 ms to 1 day. Default: 30 s.
    ///
    /// After this time, a key that a crashed process claimed can be claimed again.
    fn ttl(ttl: Duration) => settings.ttl = ttl;
}

impl<S, B, R> Layer<S> for IdempotencyLayer<B, R> {
    type Service = Layered<S, Shared<B, R>>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered::new(inner, Arc::clone(&self.shared))
    }
}

debug!(IdempotencyLayer<B, R>, shared);

debug!(IdempotencyBuilder<B, R>, settings.name);

#[cfg(test)]
mod tests {
    use super::*;

    /// Responses that may change when the request is repeated are not stored.
    #[test]
    fn final_statuses_are_stored() {
        for status in 100..600 {
            let parts = http::Response::builder()
                .status(status)
                .body(())
                .map(|response| response.into_parts().0);
            let may_change = [401, 407, 408, 409, 423, 425, 429].contains(&status);
            let expected = (200..500).contains(&status) && !may_change;
            assert_eq!(
                parts.is_ok_and(|parts| is_final(&parts)),
                expected,
                "{status}"
            );
        }
    }

    #[test]
    fn settings_are_checked() {
        let builder = || {
            IdempotencyBuilder::<()>::new(
                &Store::in_memory(),
                "payments",
                Arc::new(|_: &Request<()>| "me"),
            )
        };
        let (nano, s) = (Duration::from_nanos(1), Duration::from_secs);
        for (good, bad) in [
            (
                builder().largest_request(100).max_buffered(200),
                builder().largest_request(100).max_buffered(199),
            ),
            (
                builder().remember_for(s(1)),
                builder().remember_for(s(1) - nano),
            ),
            (
                builder().remember_for(365 * DAY),
                builder().remember_for(365 * DAY + nano),
            ),
            (
                builder().read_timeout(Duration::from_millis(1)),
                builder().read_timeout(Duration::ZERO),
            ),
            (
                builder().read_timeout(DAY),
                builder().read_timeout(DAY + nano),
            ),
            (builder(), builder().ttl(Duration::ZERO)),
            (builder(), builder().max_detached(Duration::ZERO)),
        ] {
            assert!(good.build().is_ok() && bad.build().is_err_and(|error| error.is_invalid()));
        }
    }
}
