//! Why a request was refused, and what its caller gets to see.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use tower::BoxError;

use crate::error::{Subject, Why};
use crate::primitive::token_bucket::Decision;
use crate::{Error, Key};

/// Why a request did not reach the inner service.
///
/// By default it is the service's error, boxed: find it with `error.downcast_ref::<Refusal>()`.
/// [`reject_with`](crate::RateLimitLayer::reject_with) makes it a response instead.
#[derive(Clone, Debug)]
pub struct Refusal {
    error: Error,
    key: Option<Key>,
    /// Whether the requests of the layer cost different numbers of tokens.
    is_weighted: bool,
}

/// When to try again for a lease that others hold, at most.
const LONGEST_ESTIMATE: Duration = Duration::from_secs(5);

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
            None if error.is_duplicate() => RefusalKind::Duplicate,
            None if error.is_interrupted() => RefusalKind::Closed,
            None if error.is_invalid() => RefusalKind::Invalid,
            None if error.is_overloaded() => RefusalKind::Overloaded,
            None => RefusalKind::StoreUnavailable,
        }
    }

    /// When to try again, where that is known.
    ///
    /// For a rate limit this is when the tokens are there if nobody else takes them. For a permit, a lock or a single flight
    /// it is an estimate of at most 5 s: its holder may release it at any time, and may renew it.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let known = self.error.retry_after();
        if self.error.busy().is_some() { known.map(|left| left.min(LONGEST_ESTIMATE)) } else { known }
    }

    /// The decision, where it was one.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.error.decision()
    }

    /// The key of the request, from a rate limit.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// What a rate limit knows of the request that it refused.
    pub(crate) fn of(self, key: &Key, is_weighted: bool) -> Self {
        Self { key: Some(key.clone()), is_weighted, ..self }
    }

    #[cfg(feature = "http")]
    pub(crate) fn is_weighted(&self) -> bool {
        self.is_weighted
    }

    /// The error behind it.
    #[must_use]
    pub fn get_ref(&self) -> &Error {
        &self.error
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error, key: None, is_weighted: false }
    }
}

impl From<Decision> for Refusal {
    fn from(decision: Decision) -> Self {
        decision.refused().into()
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

    /// Changes the response to a request that a rate limit has admitted. Default: does nothing.
    fn admitted(&self, admission: &Admission<'_>, response: &mut Res) {
        let _ = (admission, response);
    }
}

/// What a rate limit knows of a request that it has admitted.
#[derive(Clone, Copy, Debug)]
pub struct Admission<'a> {
    pub(crate) decision: &'a Decision,
    pub(crate) key: &'a Key,
    /// Whether the requests of the layer cost different numbers of tokens.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(crate) is_weighted: bool,
}

impl Admission<'_> {
    /// The decision.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        self.decision
    }

    /// The key of the request.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.key
    }
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
