//! Why a request was refused, and what its caller gets to see.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use tower::BoxError;

use crate::Error;
use crate::error::{Subject, Why};
use crate::primitive::token_bucket::Decision;

/// Why a request did not reach the inner service.
///
/// By default it is the service's error, boxed: find it with `error.downcast_ref::<Refusal>()`.
/// [`reject_with`](crate::RateLimitLayer::reject_with) makes it a response instead.
#[derive(Clone, Debug)]
pub struct Refusal(Error);

/// The kinds of [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The quota is used up for now, or the delay would exceed `max_wait`.
    RateLimited,
    /// The request costs more than any bucket holds: it can never be admitted.
    ExceedsBurst,
    /// No permit is free, or too many wait for one.
    NoPermit,
    /// Others hold the lock, or too many wait for it.
    Locked,
    /// It was handled before.
    Duplicate,
    /// Somebody else is handling the same, and it was not to be waited for.
    InFlight,
    /// A permit, a lock or somebody else's work was waited for as long as is allowed.
    WaitedTooLong,
    /// The request weighs more than the limit: it can never be admitted.
    ExceedsLimit,
    /// The permit or lock was lost while the request was handled, which was cancelled.
    LeaseLost,
    /// This process takes no more: [`close`](crate::WaitGroup::close) was called.
    Closed,
    /// What the layer's closures asked for is not allowed, such as a limit of 0.
    Invalid,
    /// The store takes no more for now, such as a key beyond [`max_keys`](crate::StoreBuilder::max_keys). Not the
    /// caller's fault.
    Overloaded,
    /// The store gave no answer, and the layer is set to refuse then. Not the caller's fault.
    StoreUnavailable,
}

impl Refusal {
    /// Which kind it is.
    #[must_use]
    pub fn kind(&self) -> RefusalKind {
        let error = &self.0;
        match error.busy() {
            Some(busy) if busy.why == Why::WaitedTooLong => RefusalKind::WaitedTooLong,
            Some(busy) if busy.subject == Subject::Permit => RefusalKind::NoPermit,
            Some(busy) if busy.subject == Subject::Flight => RefusalKind::InFlight,
            Some(_) => RefusalKind::Locked,
            None if error.is_refused() => RefusalKind::RateLimited,
            None if error.is_exceeds_burst() => RefusalKind::ExceedsBurst,
            None if error.is_exceeds_limit() => RefusalKind::ExceedsLimit,
            None if error.is_lost() || error.is_body_timeout() => RefusalKind::LeaseLost,
            None if error.is_duplicate() => RefusalKind::Duplicate,
            None if error.is_interrupted() => RefusalKind::Closed,
            None if error.is_invalid() => RefusalKind::Invalid,
            None if error.is_overloaded() => RefusalKind::Overloaded,
            None => RefusalKind::StoreUnavailable,
        }
    }

    /// When to come back, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }

    /// The decision, where it was one.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.0.decision()
    }

    /// The error behind it.
    #[must_use]
    pub fn get_ref(&self) -> &Error {
        &self.0
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<Decision> for Refusal {
    fn from(decision: Decision) -> Self {
        Self(decision.refused())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Refusal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// How a refusal becomes what the caller of a service gets: its response, or its error.
///
/// Functions and closures from [`Refusal`] to the response are rejections that keep the inner service's error
/// type, so a service that cannot fail still cannot.
#[diagnostic::on_unimplemented(
    message = "refusals cannot become a `{Res}` by `{Self}`, or the error `{E}` of the inner service cannot be boxed",
    label = "no way to answer a refused request",
    note = "for HTTP use the layers of `tower_distributed::web`, or `.reject_with(response::refuse())`; for gRPC those of `grpc`",
    note = "or write `.reject_with(|refusal: Refusal| ...)`, a closure that returns the response"
)]
pub trait Reject<Res, E> {
    /// The error of the service as a whole.
    type Error;

    /// What a refused caller gets.
    fn reject(&self, refusal: Refusal) -> Result<Res, Self::Error>;

    /// What an error of the inner service becomes.
    fn inner_error(&self, error: E) -> Self::Error;
}

/// Refusals as errors, the default: a boxed [`Refusal`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AsError;

impl<Res, E: Into<BoxError>> Reject<Res, E> for AsError {
    type Error = BoxError;

    fn reject(&self, refusal: Refusal) -> Result<Res, BoxError> {
        Err(refusal.into())
    }

    fn inner_error(&self, error: E) -> BoxError {
        error.into()
    }
}

impl<Res, E, F: Fn(Refusal) -> Res> Reject<Res, E> for F {
    type Error = E;

    fn reject(&self, refusal: Refusal) -> Result<Res, E> {
        Ok(self(refusal))
    }

    fn inner_error(&self, error: E) -> E {
        error
    }
}
