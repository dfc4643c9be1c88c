//! One function per layer for gRPC with tonic: refusals are statuses.

// Passing a generic function as a hook would require bodies to be `'static`; a closure that calls the function does
// not.
#![allow(clippy::redundant_closure)]

#[cfg(feature = "rate-limit")]
mod retry_info;
#[cfg(feature = "rate-limit")]
mod token_budget;

#[cfg(feature = "rate-limit")]
pub use self::retry_info::RetryInfo;
#[cfg(feature = "rate-limit")]
pub use self::token_budget::{count_messages, token_budget, token_budgets};

use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

#[cfg(feature = "dedupe")]
use crate::dedupe::Dedupe;
#[cfg(feature = "rate-limit")]
use crate::http::layers::insert_decision;
use crate::http::layers::{self, InsertLease};
use crate::http::until_body_end::UntilBodyEnd;
#[cfg(feature = "concurrency-limit")]
use crate::layers::concurrency_limit::ConcurrencyLimitLayer;
#[cfg(feature = "dedupe")]
use crate::layers::dedupe::DedupeLayer;
use crate::layers::key::KeyExtractor;
#[cfg(feature = "mutex")]
use crate::layers::mutex::MutexLayer;
#[cfg(feature = "rate-limit")]
use crate::layers::rate_limit::RateLimitLayer;
#[cfg(feature = "rate-limit")]
use crate::layers::rate_limit::keys::KeyExtractors;
use crate::layers::refusal::{Refusal, RefusalKind, Reject};
#[cfg(feature = "rw-lock")]
use crate::layers::rw_lock::RwLockLayer;
#[cfg(feature = "mutex")]
use crate::mutex::Mutex;
#[cfg(feature = "rw-lock")]
use crate::rw_lock::{Access, RwLock};
#[cfg(feature = "rate-limit")]
use crate::token_bucket::TokenBucket;
#[cfg(feature = "rate-limit")]
use crate::token_bucket::limits::TokenBuckets;
#[cfg(feature = "concurrency-limit")]
use crate::wait_group::WaitGroup;

/// A [`RateLimitLayer`] for gRPC: refusals are statuses. The handler gets the
/// [`Decision`](crate::token_bucket::Decision) as an extension.
///
/// ```
/// use tower_distributed::{Quota, Store, TokenBucket, extract, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "calls", Quota::per_second(100))?;
/// let limit = grpc::rate_limit(bucket, extract::grpc_method().and(extract::client_ip()));
/// # let _: tower_distributed::RateLimitLayer<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, _> = limit.clone();
/// let server = tonic::transport::Server::builder().layer(limit);
/// # Ok(()) }
/// ```
#[cfg(feature = "rate-limit")]
#[must_use]
pub fn rate_limit<B, B2>(
    bucket: TokenBucket,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse> {
    limit_in_grpc(RateLimitLayer::new(bucket, key))
}

/// Several limits over different keys for gRPC: a call is charged to all of them or to none, in one step. Like
/// [`web::rate_limits`](crate::web::rate_limits), but refusals are statuses.
#[cfg(feature = "rate-limit")]
#[must_use]
pub fn rate_limits<B, B2, K, const N: usize>(
    limits: TokenBuckets<N>,
    keys: K,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse>
where
    K: KeyExtractors<Request<B>, N> + Send + Sync + 'static,
{
    limit_in_grpc(RateLimitLayer::all_of(limits, keys))
}

#[cfg(feature = "rate-limit")]
fn limit_in_grpc<B, B2>(
    layer: RateLimitLayer<Request<B>, Response<B2>>,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse> {
    layer
        .on_admit(|decision, request| insert_decision(decision, request))
        .reject_with(refuse())
}

/// A [`ConcurrencyLimitLayer`] for gRPC: a permit is held to the end of the call, which for a streaming call is the end
/// of its stream; refusals are statuses. The handler gets a [`LeaseHandle`](crate::LeaseHandle) as an extension.
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
#[cfg(feature = "concurrency-limit")]
#[must_use]
pub fn concurrency_limit<B: Body + 'static>(
    group: WaitGroup,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> ConcurrencyLimitLayer<Request<B>, UntilBodyEnd, Refuse> {
    layers::concurrency_limit(group, key)
        .watch_body_of_type(tonic::body::Body::new)
        .reject_with(refuse())
}

/// A [`RwLockLayer`] for gRPC: locks are held to the end of the call, refusals are statuses. All calls write, unless
/// [`access`](RwLockLayer::access) says which ones read:
///
/// ```
/// use tower_distributed::{RwLock, Store, extract::header, grpc, rw_lock::Access};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let documents = RwLock::new(&Store::in_memory(), "documents")?;
/// let layer = grpc::rw_lock(documents, header("x-document")?).access(|call: &http::Request<tonic::body::Body>| {
///     if call.uri().path().ends_with("/Get") { Access::Read } else { Access::Write }
/// });
/// let server = tonic::transport::Server::builder().layer(layer);
/// # Ok(()) }
/// ```
#[cfg(feature = "rw-lock")]
#[must_use]
pub fn rw_lock<B>(
    lock: RwLock,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RwLockLayer<Request<B>, UntilBodyEnd, Refuse> {
    layers::rw_lock(lock, key)
        .access(|_| Access::Write)
        .reject_with(refuse())
}

/// A [`MutexLayer`] for gRPC: the lock is held to the end of the call, refusals are statuses. Otherwise like
/// [`concurrency_limit`].
///
/// ```
/// use tower_distributed::{Mutex, MutexLayer, Store, extract, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let accounts = Mutex::new(&Store::in_memory(), "accounts")?;
/// let lock = grpc::mutex(accounts, extract::header("x-account")?);
/// # let _: MutexLayer<http::Request<tonic::body::Body>, _, _> = lock.clone();
/// let server = tonic::transport::Server::builder().layer(lock);
/// # Ok(()) }
/// ```
#[cfg(feature = "mutex")]
#[must_use]
pub fn mutex<B>(
    mutex: Mutex,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> MutexLayer<Request<B>, UntilBodyEnd, Refuse> {
    layers::mutex(mutex, key).reject_with(refuse())
}

/// A [`DedupeLayer`] for gRPC. A call counts as handled if the head of its response [has no error](is_handled).
/// Refusals are statuses; a duplicate is refused with `ALREADY_EXISTS`. The handler gets a
/// [`LeaseHandle`](crate::LeaseHandle) of its claim as an extension.
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
#[cfg(feature = "dedupe")]
#[must_use]
pub fn dedupe<B, B2, E>(
    dedupe: Dedupe,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> DedupeLayer<Request<B>, Response<B2>, E, Refuse> {
    DedupeLayer::new(dedupe, key)
        .success(|outcome| is_handled(outcome))
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// Decides for a [`DedupeLayer`] whether an item was handled: the head of the response has no error status. tonic puts
/// the error of a unary call in the head.
#[cfg(feature = "dedupe")]
#[must_use]
pub fn is_handled<B, E>(outcome: &Result<Response<B>, E>) -> bool {
    outcome.as_ref().is_ok_and(|response| {
        let status = response.headers().get("grpc-status");
        response.status().is_success() && status.is_none_or(|status| status == "0")
    })
}

/// Turns refusals into trailers-only responses, for servers and around client channels:
///
/// | refusal | status | |
/// |---|---|---|
/// | [`RateLimited`](RefusalKind::RateLimited) | `RESOURCE_EXHAUSTED` | with `google.rpc.RetryInfo` if known |
/// | [`ExceedsBurst`](RefusalKind::ExceedsBurst) | `INVALID_ARGUMENT` | |
/// | [`NoPermit`](RefusalKind::NoPermit) | `RESOURCE_EXHAUSTED` | with `RetryInfo` if known |
/// | [`Locked`](RefusalKind::Locked) | `ABORTED` | with `RetryInfo` if known |
/// | [`BadRequest`](RefusalKind::BadRequest) | `INVALID_ARGUMENT` | |
/// | [`MissingPart`](RefusalKind::MissingPart) | `INVALID_ARGUMENT` | with the name of the part |
/// | [`RequestTooLarge`](RefusalKind::RequestTooLarge), [`KeyReused`](RefusalKind::KeyReused) | `INVALID_ARGUMENT` | |
/// | [`RequestTimeout`](RefusalKind::RequestTimeout) | `DEADLINE_EXCEEDED` | |
/// | [`LookUpFailed`](RefusalKind::LookUpFailed) | `UNAVAILABLE` | without the cause |
/// | [`Duplicate`](RefusalKind::Duplicate) | `ALREADY_EXISTS` | |
/// | [`InFlight`](RefusalKind::InFlight) | `ABORTED` | with `RetryInfo` if known |
/// | [`WaitedTooLong`](RefusalKind::WaitedTooLong) | `UNAVAILABLE` | the call was not handled, and may be repeated |
/// | [`ExceedsLimit`](RefusalKind::ExceedsLimit) | `INVALID_ARGUMENT` | |
/// | [`LeaseLost`](RefusalKind::LeaseLost) | `ABORTED` | |
/// | [`Closed`](RefusalKind::Closed) | `UNAVAILABLE` | |
/// | [`Invalid`](RefusalKind::Invalid) | `INTERNAL` | the layer is misconfigured, see the event `misconfigured` |
/// | [`Overloaded`](RefusalKind::Overloaded) | `UNAVAILABLE` | with `RetryInfo` (1 s), without the cause |
/// | [`StoreUnavailable`](RefusalKind::StoreUnavailable) | `UNAVAILABLE` | with `RetryInfo` (1 s), without the cause |
///
/// gRPC has one status for a client that makes too many calls and for a service that has no capacity, so there is no
/// setting like [`permits_per_client`](crate::response::Refuse::permits_per_client) of HTTP. To choose another status,
/// pass a closure to `reject_with` that changes the [`status`] of a refusal.
///
/// ```
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, extract::header, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "rpc", Quota::per_second(100))?;
/// let limit = RateLimitLayer::new(bucket, header("x-tenant")?).reject_with(grpc::refuse());
/// # let _: RateLimitLayer<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, _> = limit.clone();
/// let server = tonic::transport::Server::builder().layer(limit);
/// # Ok(()) }
/// ```
#[must_use]
pub fn refuse() -> Refuse {
    Refuse::default()
}

/// The [`Reject`] that [`refuse`] returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refuse {
    jitter: Duration,
}

impl Refuse {
    /// Adds a random time from zero to `jitter` to each `RetryInfo`, so that clients that are refused at the same time
    /// return at different times. Default: zero.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Quota, Store, TokenBucket, extract::header, grpc};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "rpc", Quota::per_second(100))?;
    /// let refuse = grpc::refuse().jitter(Duration::from_secs(3));
    /// let limit = grpc::rate_limit(bucket, header("x-tenant")?).reject_with(refuse);
    /// # let _: tower_distributed::RateLimitLayer<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, _> = limit.clone();
    /// let server = tonic::transport::Server::builder().layer(limit);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn jitter(self, jitter: Duration) -> Self {
        Self { jitter }
    }
}

impl<B: Default, E> Reject<Response<B>, E> for Refuse {
    type Error = E;

    fn reject(&self, refusal: Refusal) -> Result<Response<B>, E> {
        Ok(status_after(&refusal, self.jitter).into_http())
    }

    fn inner_error(error: E) -> E {
        error
    }
}

/// Returns the gRPC status for a refusal.
///
/// ```
/// use tonic::Code;
/// use tower_distributed::{Refusal, Store, WaitGroup, grpc};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let streams = WaitGroup::new(&Store::in_memory(), "streams", 1)?;
/// let _open = streams.try_add("ann").await?;
///
/// // In a handler that acquires the permit itself:
/// let error = streams.try_add("ann").await.unwrap_err();
/// let status = grpc::status(&Refusal::from(error));
/// assert_eq!(status.code(), Code::ResourceExhausted);
/// # Ok(()) }
/// ```
#[must_use]
pub fn status(refusal: &Refusal) -> Status {
    status_after(refusal, Duration::ZERO)
}

/// The status for a refusal, with `jitter` in its `RetryInfo`.
fn status_after(refusal: &Refusal, jitter: Duration) -> Status {
    let with_retry_info =
        |code, text: &str, refusal: &Refusal| with_retry_info(code, text, refusal, jitter);
    match refusal.kind() {
        RefusalKind::RateLimited if refusal.retry_after().is_none() => {
            Status::resource_exhausted("quota used up")
        }
        RefusalKind::RateLimited => {
            with_retry_info(Code::ResourceExhausted, "rate limit exceeded", refusal)
        }
        // The text comes from the service, and may be private.
        RefusalKind::BadRequest => Status::invalid_argument("bad request"),
        RefusalKind::MissingPart
        | RefusalKind::ExceedsBurst
        | RefusalKind::ExceedsLimit
        | RefusalKind::RequestTooLarge
        | RefusalKind::KeyReused => Status::invalid_argument(refusal.to_string()),
        RefusalKind::RequestTimeout => Status::deadline_exceeded(refusal.to_string()),
        RefusalKind::NoPermit => {
            with_retry_info(Code::ResourceExhausted, &refusal.to_string(), refusal)
        }
        RefusalKind::Locked | RefusalKind::InFlight => {
            with_retry_info(Code::Aborted, &refusal.to_string(), refusal)
        }
        RefusalKind::WaitedTooLong => Status::unavailable(refusal.to_string()),
        RefusalKind::Duplicate => Status::already_exists(refusal.to_string()),
        RefusalKind::LeaseLost => Status::aborted(refusal.to_string()),
        RefusalKind::Closed => Status::unavailable("shutting down"),
        RefusalKind::Invalid => Status::internal("a limit is misconfigured"),
        RefusalKind::Overloaded => {
            with_retry_info(Code::Unavailable, "rate limits are overloaded", refusal)
        }
        RefusalKind::LookUpFailed => Status::unavailable("temporarily unavailable"),
        RefusalKind::StoreUnavailable => {
            with_retry_info(Code::Unavailable, "rate limits are unavailable", refusal)
        }
    }
}

/// The status for a refusal, with `RetryInfo` if known.
fn with_retry_info(code: Code, text: &str, refusal: &Refusal, jitter: Duration) -> Status {
    match refusal.retry_after_with(jitter) {
        Some(after) => {
            Status::with_error_details(code, text, ErrorDetails::with_retry_info(Some(after)))
        }
        None => Status::new(code, text),
    }
}
