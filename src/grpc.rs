//! Conveniences for gRPC with tonic: refusals as statuses.

use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{Refusal, RefusalKind, Reject};

/// Refusals as trailers-only responses, on servers and around client channels:
///
/// | refusal | status | |
/// |---|---|---|
/// | [`RateLimited`](RefusalKind::RateLimited) | `RESOURCE_EXHAUSTED` | with `google.rpc.RetryInfo` where the time is known |
/// | [`ExceedsBurst`](RefusalKind::ExceedsBurst) | `INVALID_ARGUMENT` | |
/// | [`StoreUnavailable`](RefusalKind::StoreUnavailable) | `UNAVAILABLE` | the cause is not told to the client |
///
/// ```
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, grpc, http::header};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_process(), "rpc", Quota::per_second(100))?;
/// let limit = RateLimitLayer::new(bucket, header("authorization")?).reject_with(grpc::refuse());
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

    fn inner_error(&self, error: E) -> E {
        error
    }
}

/// The status that a refusal is told as.
#[must_use]
pub fn status(refusal: &Refusal) -> Status {
    let exhausted = |after: Option<Duration>| match after {
        Some(after) => {
            let details = ErrorDetails::with_retry_info(Some(after));
            Status::with_error_details(Code::ResourceExhausted, "rate limit exceeded", details)
        }
        None => Status::resource_exhausted("quota used up"),
    };
    match refusal.kind() {
        RefusalKind::RateLimited => exhausted(refusal.retry_after()),
        RefusalKind::ExceedsBurst => Status::invalid_argument(refusal.to_string()),
        RefusalKind::StoreUnavailable => Status::unavailable("rate limits are unavailable"),
    }
}
