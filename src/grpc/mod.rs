//! One line per layer for gRPC with tonic: refusals are statuses.

// As in `web`.
#![allow(clippy::redundant_closure)]

#[cfg(feature = "concurrency-limit")]
mod concurrency_limit;
#[cfg(feature = "dedupe")]
mod dedupe;
#[cfg(feature = "mutex")]
mod mutex;
#[cfg(feature = "rate-limit")]
mod rate_limit;
#[cfg(feature = "rate-limit")]
mod retry_info;
#[cfg(feature = "rw-lock")]
mod rw_lock;
#[cfg(feature = "rate-limit")]
mod token_budget;

#[cfg(feature = "concurrency-limit")]
pub use self::concurrency_limit::concurrency_limit;
#[cfg(feature = "dedupe")]
pub use self::dedupe::{dedupe, is_handled};
#[cfg(feature = "mutex")]
pub use self::mutex::mutex;
#[cfg(feature = "rate-limit")]
pub use self::rate_limit::{rate_limit, rate_limits};
#[cfg(feature = "rate-limit")]
pub use self::retry_info::RetryInfo;
#[cfg(feature = "rw-lock")]
pub use self::rw_lock::rw_lock;
#[cfg(feature = "rate-limit")]
pub use self::token_budget::{count_messages, token_budget};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{Refusal, RefusalKind, Reject};

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
/// | [`InFlight`](RefusalKind::InFlight) | `ABORTED` | with `RetryInfo` likewise |
/// | [`WaitedTooLong`](RefusalKind::WaitedTooLong) | `UNAVAILABLE` | the call was not handled, and may be repeated |
/// | [`ExceedsLimit`](RefusalKind::ExceedsLimit) | `INVALID_ARGUMENT` | |
/// | [`LeaseLost`](RefusalKind::LeaseLost) | `ABORTED` | |
/// | [`Closed`](RefusalKind::Closed) | `UNAVAILABLE` | |
/// | [`Invalid`](RefusalKind::Invalid) | `INTERNAL` | the layer is misconfigured, see the event `misconfigured` |
/// | [`Overloaded`](RefusalKind::Overloaded) | `UNAVAILABLE` | with `RetryInfo` (1 s), without the cause |
/// | [`StoreUnavailable`](RefusalKind::StoreUnavailable) | `UNAVAILABLE` | with `RetryInfo` (1 s), without the cause |
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
    Refuse
}

/// See [`refuse`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Refuse;

impl<B: Default, E> Reject<http::Response<B>, E> for Refuse {
    type Error = E;

    fn reject(&self, refusal: Refusal) -> Result<http::Response<B>, E> {
        Ok(status(&refusal).into_http())
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
    match refusal.kind() {
        RefusalKind::RateLimited if refusal.retry_after().is_none() => {
            Status::resource_exhausted("quota used up")
        }
        RefusalKind::RateLimited => told(Code::ResourceExhausted, "rate limit exceeded", refusal),
        // Its text is the service's own, and may be private.
        RefusalKind::BadRequest => Status::invalid_argument("bad request"),
        RefusalKind::MissingPart
        | RefusalKind::ExceedsBurst
        | RefusalKind::ExceedsLimit
        | RefusalKind::RequestTooLarge
        | RefusalKind::KeyReused => Status::invalid_argument(refusal.to_string()),
        RefusalKind::RequestTimeout => Status::deadline_exceeded(refusal.to_string()),
        RefusalKind::NoPermit => told(Code::ResourceExhausted, &refusal.to_string(), refusal),
        RefusalKind::Locked | RefusalKind::InFlight => {
            told(Code::Aborted, &refusal.to_string(), refusal)
        }
        RefusalKind::WaitedTooLong => Status::unavailable(refusal.to_string()),
        RefusalKind::Duplicate => Status::already_exists(refusal.to_string()),
        RefusalKind::LeaseLost => Status::aborted(refusal.to_string()),
        RefusalKind::Closed => Status::unavailable("shutting down"),
        RefusalKind::Invalid => Status::internal("a limit is misconfigured"),
        RefusalKind::Overloaded => told(Code::Unavailable, "rate limits are overloaded", refusal),
        RefusalKind::LookUpFailed => Status::unavailable("temporarily unavailable"),
        RefusalKind::StoreUnavailable => {
            told(Code::Unavailable, "rate limits are unavailable", refusal)
        }
    }
}

/// The status for a refusal, with `RetryInfo` if known.
fn told(code: Code, text: &str, refusal: &Refusal) -> Status {
    match refusal.retry_after() {
        Some(after) => {
            Status::with_error_details(code, text, ErrorDetails::with_retry_info(Some(after)))
        }
        None => Status::new(code, text),
    }
}
