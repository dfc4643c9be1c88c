//! One opaque error for the whole crate.

use std::any::Any;
use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What went wrong, to be asked with the `is_…` methods.
///
/// A refusal and an outage are never confused: [`is_refused`](Self::is_refused) means that the limit said no,
/// [`is_unavailable`](Self::is_unavailable) that the store gave no answer. Cloning is cheap; the text and
/// the [`source`](StdError::source) are for people and may change in any release.
#[derive(Clone)]
pub struct Error(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    Invalid(String),
    Refused(Refused),
    ExceedsBurst {
        cost: u32,
        burst: u32,
    },
    Busy(Busy),
    ExceedsLimit {
        weight: u32,
        limit: u32,
    },
    Lost,
    /// The limit that the body has met.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    BodyTimeout(&'static str),
    Duplicate,
    Interrupted,
    Unavailable(Outage),
    /// The bound that was met.
    Overloaded(Cow<'static, str>),
}

/// When to ask again after an overload.
const OVERLOAD: Duration = Duration::from_secs(1);

/// A limit said no.
#[derive(Debug)]
struct Refused {
    retry_after: Option<Duration>,
    /// What the limit knows besides.
    decision: Box<dyn Any + Send + Sync>,
}

/// Why a lease was not granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    pub(crate) subject: Subject,
    pub(crate) why: Why,
    /// Until the next lease ends, unless it is renewed.
    pub(crate) retry_after: Option<Duration>,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Permit,
    Lock,
    /// Work that somebody else is at.
    Flight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Others hold it.
    Taken,
    /// Too many wait for it already.
    QueueFull,
    /// It was not to be had within `max_wait`, or as many tries.
    WaitedTooLong,
}

/// Why the store gave no answer.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    pub(crate) cause: Cause,
    pub(crate) text: Cow<'static, str>,
    pub(crate) source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Outage`], as far as anybody acts on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No answer within the store's time-out: what was asked may or may not have been done.
    TimedOut,
    /// The connection could not be made, or broke.
    Disconnected,
    /// The server is there and answers that it cannot serve (LOADING, READONLY, CLUSTERDOWN, …).
    NotServing,
    /// The server refuses this script or this key, and serves others.
    Denied,
    /// There was no connection: nothing was sent.
    NotSent,
    /// The breaker is open: nothing was sent.
    BreakerOpen,
    /// A key holds something that is none of this crate's.
    WrongType,
    /// The server answered something that this crate does not understand.
    Unexpected,
}

impl Error {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self(Arc::new(Kind::Invalid(text.into())))
    }

    /// A limit said no, and this is what it knows.
    pub(crate) fn refused_by<D: Any + Send + Sync>(decision: D, retry_after: Option<Duration>) -> Self {
        Self(Arc::new(Kind::Refused(Refused { retry_after, decision: Box::new(decision) })))
    }

    pub(crate) fn exceeds_burst(cost: u32, burst: u32) -> Self {
        Self(Arc::new(Kind::ExceedsBurst { cost, burst }))
    }

    pub(crate) fn exceeds_limit(weight: u32, limit: u32) -> Self {
        Self(Arc::new(Kind::ExceedsLimit { weight, limit }))
    }

    pub(crate) fn lost() -> Self {
        Self(Arc::new(Kind::Lost))
    }

    /// The text names the limit.
    #[cfg(feature = "http")]
    pub(crate) fn body_timeout(text: &'static str) -> Self {
        Self(Arc::new(Kind::BodyTimeout(text)))
    }

    pub(crate) fn duplicate() -> Self {
        Self(Arc::new(Kind::Duplicate))
    }

    pub(crate) fn interrupted() -> Self {
        Self(Arc::new(Kind::Interrupted))
    }

    pub(crate) fn unavailable(cause: Cause, text: impl Into<Cow<'static, str>>) -> Self {
        Outage { cause, text: text.into(), source: None }.into()
    }

    /// The text names the bound.
    pub(crate) fn overloaded(text: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Kind::Overloaded(text.into())))
    }

    /// A setting or an argument is not allowed; the text names it and what is.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(*self.0, Kind::Invalid(_))
    }

    /// The limit said no, or others hold the lock; [`retry_after`](Self::retry_after) tells when to ask again, and
    /// [`decision`](Self::decision) what a token bucket said.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(*self.0, Kind::Refused(_) | Kind::Busy(_))
    }

    /// It was refused after a wait: not to be had within `max_wait`, or the tries allowed.
    #[must_use]
    pub fn is_waited_too_long(&self) -> bool {
        self.busy().is_some_and(|busy| busy.why == Why::WaitedTooLong)
    }

    /// It was refused since too many wait already.
    #[must_use]
    pub fn is_queue_full(&self) -> bool {
        self.busy().is_some_and(|busy| busy.why == Why::QueueFull)
    }

    /// The weight is above the limit: no amount of waiting will admit it.
    #[must_use]
    pub fn is_exceeds_limit(&self) -> bool {
        matches!(*self.0, Kind::ExceedsLimit { .. })
    }

    /// What was to be extended or released is not held any more: it ran out, or was taken away.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(*self.0, Kind::Lost)
    }

    /// A response body was aborted at a limit of `response::UntilBodyEnd`, and its lease released: see `response::LeaseEnd`.
    #[must_use]
    pub fn is_body_timeout(&self) -> bool {
        matches!(*self.0, Kind::BodyTimeout(_))
    }

    /// It was handled before, by what a filter says.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        matches!(*self.0, Kind::Duplicate)
    }

    /// The wait was ended by `close`.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(*self.0, Kind::Interrupted)
    }

    /// When to ask again after a refusal or an overload, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match &*self.0 {
            Kind::Refused(refused) => refused.retry_after,
            Kind::Busy(busy) => busy.retry_after,
            Kind::Overloaded(_) => Some(OVERLOAD),
            _ => None,
        }
    }

    /// The cost is above the burst: no amount of waiting will admit it.
    #[must_use]
    pub fn is_exceeds_burst(&self) -> bool {
        matches!(*self.0, Kind::ExceedsBurst { .. })
    }

    /// The store gave no answer: it is down, out of reach, too slow, or not serving.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(*self.0, Kind::Unavailable(_))
    }

    /// The store takes no more for now: a bound such as [`max_keys`](crate::StoreBuilder::max_keys) is reached. Nothing
    /// was done.
    ///
    /// This is neither an outage nor a refusal by a limit. No layer lets a request pass for it, also where it is set to fail
    /// open. [`retry_after`](Self::retry_after) says 1 s.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::builder().max_keys(1).in_memory()?;
    /// let mutex = Mutex::new(&store, "invoices")?;
    /// let _guard = mutex.lock("invoice-42").await?;
    /// assert!(mutex.try_lock("invoice-43").await.unwrap_err().is_overloaded());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        matches!(*self.0, Kind::Overloaded(_))
    }

    /// The store gave no answer in time: what was asked may or may not have been done.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.outage().is_some_and(|outage| outage.cause == Cause::TimedOut)
    }

    /// A key of ours holds something else, which is left as it is: delete it, or choose another name. Also
    /// [unavailable](Self::is_unavailable), but not for want of a store: no layer lets requests pass for it.
    #[must_use]
    pub fn is_wrong_type(&self) -> bool {
        self.outage().is_some_and(|outage| outage.cause == Cause::WrongType)
    }

    /// Whether there is no store to ask, for now.
    pub(crate) fn is_away(&self) -> bool {
        self.is_unavailable() && !self.is_wrong_type()
    }

    /// What the limit that said no knows.
    pub(crate) fn refused_with<D: Any>(&self) -> Option<&D> {
        match &*self.0 {
            Kind::Refused(refused) => refused.decision.downcast_ref(),
            _ => None,
        }
    }

    /// Whether the store has certainly not been asked.
    pub(crate) fn is_not_sent(&self) -> bool {
        self.is_overloaded()
            || self.outage().is_some_and(|outage| matches!(outage.cause, Cause::NotSent | Cause::BreakerOpen))
    }

    pub(crate) fn busy(&self) -> Option<&Busy> {
        match &*self.0 {
            Kind::Busy(busy) => Some(busy),
            _ => None,
        }
    }

    pub(crate) fn outage(&self) -> Option<&Outage> {
        match &*self.0 {
            Kind::Unavailable(outage) => Some(outage),
            _ => None,
        }
    }
}

impl From<Busy> for Error {
    fn from(busy: Busy) -> Self {
        Self(Arc::new(Kind::Busy(busy)))
    }
}

impl From<Outage> for Error {
    fn from(outage: Outage) -> Self {
        Self(Arc::new(Kind::Unavailable(outage)))
    }
}

/// So that `TryInto` bounds also take what cannot fail.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Error").field(&self.0).finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Invalid(text) => f.write_str(text),
            Kind::Refused(refused) => match refused.retry_after {
                Some(after) => write!(f, "rate limit exceeded, retry in {after:?}"),
                None => f.write_str("quota used up"),
            },
            Kind::ExceedsBurst { cost, burst } => {
                write!(f, "a cost of {cost} can never be admitted by a burst of {burst}")
            }
            Kind::Busy(busy) => busy.fmt(f),
            Kind::ExceedsLimit { weight, limit } => {
                write!(f, "a weight of {weight} can never be admitted by a limit of {limit}")
            }
            Kind::Lost => f.write_str("the lease is not held any more"),
            Kind::BodyTimeout(text) => write!(f, "response body aborted: {text}"),
            Kind::Duplicate => f.write_str("it was handled before"),
            Kind::Interrupted => f.write_str("closed while waiting"),
            Kind::Unavailable(outage) => write!(f, "store unavailable: {}", outage.text),
            Kind::Overloaded(text) => write!(f, "store overloaded: {text}"),
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.why, self.subject) {
            (Why::Taken, Subject::Permit) => "no permit is free",
            (Why::Taken, Subject::Lock) => "the lock is held",
            (Why::QueueFull, Subject::Permit) => "too many wait for a permit",
            (Why::QueueFull, Subject::Lock) => "too many wait for the lock",
            (Why::Taken, Subject::Flight) => "somebody else is at it",
            (Why::QueueFull, Subject::Flight) => "too many wait for somebody else's work",
            (Why::WaitedTooLong, Subject::Flight) => "somebody else's work did not end in time",
            (Why::WaitedTooLong, Subject::Permit) => "no permit became free in time",
            (Why::WaitedTooLong, Subject::Lock) => "the lock was not to be had in time",
        })
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.outage()?.source.as_ref()?;
        Some(source.as_ref())
    }
}
