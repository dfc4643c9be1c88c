//! The reason why a layer refused a request ([`Refusal`]), and how the refusal is returned ([`Reject`]).

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use tower::BoxError;

#[cfg(feature = "rate-limit")]
use crate::bucket::decision::Decision;
use crate::error::Error;
use crate::error::reasons::{Subject, Upload, Why};
use crate::telemetry::emit::tell_invalid;

/// Why a request did not reach the inner service.
///
/// By default it is the error of the service, boxed: find it with `error.downcast_ref::<Refusal>()`.
/// [`reject_with`](crate::RateLimitLayer::reject_with) turns it into a response instead.
///
/// ```
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_distributed::{Quota, RateLimitLayer, Refusal, RefusalKind, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_minute(1))?;
/// let limit = RateLimitLayer::new(bucket, |user: &&'static str| *user);
/// let mut send = limit.layer(service_fn(async |_: &'static str| Ok::<_, std::io::Error>("sent")));
///
/// send.ready().await?.call("ann").await?;
/// let error = send.ready().await?.call("ann").await.unwrap_err();
/// let refusal = error.downcast_ref::<Refusal>().ok_or("an error of the inner service")?;
/// assert_eq!(refusal.kind(), RefusalKind::RateLimited);
/// assert!(refusal.retry_after().is_some_and(|after| after.as_secs() <= 60));
/// let decision = refusal.decision().ok_or("a refusal without a decision")?;
/// assert_eq!((decision.key.as_ref(), decision.remaining()), (Some(&"ann".into()), 0));
/// assert!(refusal.get_ref().is_refused()); // the error of the token bucket
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Refusal {
    error: Error,
}

/// The maximum of [`Refusal::retry_after`] for a lease that another caller holds.
const LONGEST_ESTIMATE: Duration = Duration::from_secs(5);

/// The kinds of [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The quota is used up for now, or the delay would exceed `max_wait`.
    RateLimited,
    /// The request costs more than the burst: it can never be admitted.
    ExceedsBurst,
    /// No permit is free, or the queue for permits is full.
    NoPermit,
    /// Another caller holds the lock, or the queue for the lock is full.
    Locked,
    /// The item was already handled.
    Duplicate,
    /// Another caller is handling the same key, and the request does not wait for it, or the queue is full.
    InFlight,
    /// The request waited the longest allowed time for a permit, a lock or another caller's result.
    WaitedTooLong,
    /// The request weighs more than the limit: it can never be admitted.
    ExceedsLimit,
    /// The permit or lock was lost while the request was handled, and the request was cancelled. Or a response body
    /// was aborted at a time limit, see `Error::is_body_timeout`.
    LeaseLost,
    /// This process admits no more requests: [`close`](crate::WaitGroup::close) was called.
    Closed,
    /// The key extractor could not get a key from the request: [`Error::bad_request`].
    BadRequest,
    /// The request lacks a part of its key, such as a header field. The text of the error names the part.
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed::{KeyExtractor, Refusal, RefusalKind, extract::header};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let error = header("x-tenant")?.extract(&Request::new(())).await.unwrap_err();
    /// assert_eq!(error.to_string(), "the header field x-tenant is missing");
    /// assert_eq!(Refusal::from(error).kind(), RefusalKind::MissingPart);
    /// # Ok(()) }
    /// ```
    MissingPart,
    /// The request body is larger than the layer allows, and was not handled.
    RequestTooLarge,
    /// The request body did not arrive in time, and the request was not handled.
    RequestTimeout,
    /// The idempotency key was used for another request.
    KeyReused,
    /// The key extractor could not look the key up now: [`Error::look_up_failed`]. The caller did nothing wrong.
    LookUpFailed,
    /// A closure of the layer returned an invalid setting, such as a class that does not exist.
    Invalid,
    /// The store refused the operation because a bound is reached, such as [`max_keys`](crate::StoreBuilder::max_keys)
    /// or [`max_bytes`](crate::StoreBuilder::max_bytes), or the layer has no memory left for the request body. The caller did
    /// nothing wrong.
    Overloaded,
    /// The store is unavailable, and the layer is set to fail closed. The caller did nothing wrong.
    StoreUnavailable,
}

impl Refusal {
    /// Returns the kind of the refusal.
    #[must_use]
    pub fn kind(&self) -> RefusalKind {
        let error = &self.error;
        match error.busy() {
            Some(busy) if busy.why == Why::WaitedTooLong => RefusalKind::WaitedTooLong,
            Some(busy) if busy.subject == Subject::Permit => RefusalKind::NoPermit,
            Some(busy) if busy.subject == Subject::Flight => RefusalKind::InFlight,
            Some(_) => RefusalKind::Locked,
            None if error.is_refused() => RefusalKind::RateLimited,
            None if error.is_exceeds_burst() => RefusalKind::ExceedsBurst,
            None if error.is_exceeds_limit() => RefusalKind::ExceedsLimit,
            None if error.is_lost() || error.is_body_timeout() => RefusalKind::LeaseLost,
            None if error.is_missing_part() => RefusalKind::MissingPart,
            None if error.is_bad_request() => RefusalKind::BadRequest,
            None if error.is_look_up_failed() => RefusalKind::LookUpFailed,
            None if error.is_duplicate() => RefusalKind::Duplicate,
            None if error.is_interrupted() => RefusalKind::Closed,
            None if error.is_invalid() => RefusalKind::Invalid,
            None if error.is_overloaded() => RefusalKind::Overloaded,
            None => match error.as_upload() {
                Some(Upload::TooLarge(_)) => RefusalKind::RequestTooLarge,
                Some(Upload::TooSlow(_)) => RefusalKind::RequestTimeout,
                Some(Upload::KeyReused(_)) => RefusalKind::KeyReused,
                Some(Upload::NoRoom(_)) => RefusalKind::Overloaded,
                None => RefusalKind::StoreUnavailable,
            },
        }
    }

    /// Returns when to try again, if this is known.
    ///
    /// For a rate limit, this is when the tokens are available if no other caller takes them. For a permit, a lock or a
    /// single flight, it is an estimate of at most 5 s: the holder may release or renew its lease at any time. For a
    /// permit, it is known only if this process has released one recently.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let known = self.error.retry_after();
        if self.error.busy().is_some() {
            known.map(|left| left.min(LONGEST_ESTIMATE))
        } else {
            known
        }
    }

    /// When to try again, with a random time from zero to `jitter`.
    #[cfg(feature = "http")]
    pub(crate) fn retry_after_with(&self, jitter: Duration) -> Option<Duration> {
        let after = self.retry_after()?;
        Some(after.saturating_add(jitter.mul_f64(crate::clock::fraction())))
    }

    /// Returns the underlying error.
    #[must_use]
    pub fn get_ref(&self) -> &Error {
        &self.error
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl StdError for Refusal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

/// Converts a refusal into a response or an error for the caller of the service.
///
/// A function or closure from [`Refusal`] to the response implements this trait. It keeps the error type of the
/// inner service, so a service that cannot fail still cannot fail.
///
/// ```
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_distributed::{Quota, RateLimitLayer, Refusal, RefusalKind, Reject, Store, TokenBucket};
///
/// #[derive(Debug, PartialEq)]
/// enum MailError { Later, Server(String) }
///
/// /// Makes one error type of refusals and the errors of the mail server.
/// #[derive(Clone)]
/// struct AsMailError;
///
/// impl Reject<&'static str, std::io::Error> for AsMailError {
///     type Error = MailError;
///
///     fn reject(&self, refusal: Refusal) -> Result<&'static str, MailError> {
///         match refusal.kind() {
///             RefusalKind::RateLimited => Err(MailError::Later),
///             _ => Err(MailError::Server(refusal.to_string())),
///         }
///     }
///
///     fn inner_error(error: std::io::Error) -> MailError {
///         MailError::Server(error.to_string())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_minute(1))?;
/// let limit = RateLimitLayer::new(bucket, |user: &&'static str| *user).reject_with(AsMailError);
/// let mut send = limit.layer(service_fn(async |_: &'static str| Ok::<_, std::io::Error>("sent")));
/// assert_eq!(send.ready().await.unwrap().call("ann").await, Ok("sent"));
/// assert_eq!(send.ready().await.unwrap().call("ann").await, Err(MailError::Later));
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot turn refusals into a `{Res}`, or the error `{E}` of the inner service cannot be boxed",
    label = "no way to respond to a refused request",
    note = "for HTTP use the layers of `tower_distributed::web`, or `.reject_with(response::refuse())`; for gRPC use those of `grpc`",
    note = "or write `.reject_with(|refusal: Refusal| ...)` with a closure that returns the response"
)]
pub trait Reject<Res, E> {
    /// The error of the whole service.
    type Error;

    /// Returns the response or the error for a refused request.
    fn reject(&self, refusal: Refusal) -> Result<Res, Self::Error>;

    /// Converts an error of the inner service.
    fn inner_error(error: E) -> Self::Error;
}

/// Refuses a request. All layers call this, so that an invalid setting is always reported as an event.
pub(crate) fn refused<Res, E, R: Reject<Res, E>>(
    reject: &R,
    refusal: impl Into<Refusal>,
) -> Result<Res, R::Error> {
    let refusal = refusal.into();
    if refusal.kind() == RefusalKind::Invalid {
        tell_invalid(refusal.get_ref());
    }
    reject.reject(refusal)
}

/// Returns refusals as errors: a boxed [`Refusal`]. This is the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsError;

impl<Res, E: Into<BoxError>> Reject<Res, E> for AsError {
    type Error = BoxError;

    fn reject(&self, refusal: Refusal) -> Result<Res, BoxError> {
        Err(refusal.into())
    }

    fn inner_error(error: E) -> BoxError {
        error.into()
    }
}

impl<Res, E, F: Fn(Refusal) -> Res> Reject<Res, E> for F {
    type Error = E;

    fn reject(&self, refusal: Refusal) -> Result<Res, E> {
        Ok(self(refusal))
    }

    fn inner_error(error: E) -> E {
        error
    }
}

#[cfg(feature = "rate-limit")]
impl Refusal {
    /// Returns the decision of the token bucket, if one refused the request.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.get_ref().decision()
    }
}

#[cfg(feature = "rate-limit")]
impl From<Decision> for Refusal {
    fn from(decision: Decision) -> Self {
        decision.refused().into()
    }
}
