//! The error type of the crate: one opaque [`Error`].

use std::any::Any;
use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The error of every operation in this crate. Ask for its kind with the `is_…` methods.
///
/// A refusal and an outage are always distinct: [`is_refused`](Self::is_refused) means that the limit refused the
/// call, [`is_unavailable`](Self::is_unavailable) means that the store gave no usable answer. Cloning is cheap. The
/// text and the [`source`](StdError::source) are for people and may change in any release.
///
/// ```
/// use tower_distributed::{Error, Mutex, Store};
///
/// # async fn send_bill() {}
/// async fn bill(bills: &Mutex, user: &str) -> Result<&'static str, Error> {
///     match bills.try_with_lock(user, |_| send_bill()).await {
///         Ok(()) => Ok("billed"),
///         Err(error) if error.is_refused() => Ok("another process bills this user"),
///         Err(error) if error.is_unavailable() || error.is_overloaded() => Ok("later"),
///         Err(error) => Err(error),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let bills = Mutex::new(&Store::in_memory(), "bills")?;
/// assert_eq!(bill(&bills, "ann").await?, "billed");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    Invalid(String),
    /// The name of the extension's type.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    NoExtension(&'static str),
    BadRequest(String, Fault),
    LookUpFailed(Arc<dyn StdError + Send + Sync>),
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
    /// The text names the time limit that the body exceeded.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    BodyTimeout(&'static str),
    /// The text says whether the outcome can be had.
    Duplicate(&'static str),
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Upload(Upload),
    Interrupted,
    Unavailable(Outage),
    /// The text names the bound that was reached.
    Overloaded(Cow<'static, str>),
}

/// What is wrong with a bad request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "http"), allow(dead_code))]
enum Fault {
    /// An extractor of the user says so. The text may be private.
    Told,
    /// The text is of this crate, and clients may see it.
    Malformed,
    /// A part of the key is missing. As `Malformed`, and [`or`](crate::Extracted::or) uses another key.
    Missing,
}

/// Why a request with an idempotency key is not handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) enum Upload {
    /// The body is longer than so many bytes.
    TooLarge(usize),
    /// The body was not complete after so much time.
    TooSlow(Duration),
    /// The bodies of other requests take up the room, which is so many bytes.
    NoRoom(usize),
    /// Another request has used the idempotency key. This part of it differs.
    KeyReused(&'static str),
}

/// The `retry_after` of an overload, and of an outage: the longest pause between two probes of a breaker.
const RETRY_SOON: Duration = Duration::from_secs(1);

/// A refusal by a limit.
#[derive(Debug)]
struct Refused {
    retry_after: Option<Duration>,
    /// The decision of the limit, of the limit's own type.
    decision: Box<dyn Any + Send + Sync>,
}

/// Why a lease was not granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    pub(crate) subject: Subject,
    pub(crate) why: Why,
    /// The time until the next lease expires, unless its holder renews it.
    pub(crate) retry_after: Option<Duration>,
}

/// What the caller asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Permit,
    Lock,
    /// The lead of a single flight, or the claim of an item.
    Flight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Another caller holds it.
    Taken,
    /// The queue already has `max_waiters` waiters.
    QueueFull,
    /// It did not become free within `max_wait` or within the allowed number of tries.
    WaitedTooLong,
}

/// Why the store gave no usable answer.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    pub(crate) cause: Cause,
    pub(crate) text: Cow<'static, str>,
    pub(crate) source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Outage`] that the crate treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No answer within the store's timeout: the operation may or may not have run.
    TimedOut,
    /// The connection could not be made, or it broke.
    Disconnected,
    /// The runtime that the call was sent from has ended: the operation may or may not have run.
    Ended,
    /// The server answered that it cannot serve (LOADING, READONLY, CLUSTERDOWN, …).
    NotServing,
    /// The server denies this script or this key, but serves other calls.
    Denied,
    /// The call is not on enough replicas, or not on disk. It may have run.
    NotDurable,
    /// Another node of the Cluster has the slot of the key. Nothing has run.
    Redirected,
    /// The slot of the key is being moved to another node of the Cluster. Nothing has run.
    Moving,
    /// The same, but the script has run in part: it removed a key, and the node refused when it asked for it again.
    MovedMidway,
    /// There was no connection: nothing was sent.
    NotSent,
    /// The breaker is open: nothing was sent.
    BreakerOpen,
    /// A key holds a value that this crate did not write.
    WrongType,
    /// The server sent an answer that this crate does not understand.
    Unexpected,
}

impl Error {
    /// An error for a request from which a [key extractor](crate::KeyExtractor) cannot get a key. It refuses the request as
    /// [`BadRequest`](crate::RefusalKind::BadRequest): 400 over HTTP, `INVALID_ARGUMENT` over gRPC.
    ///
    /// ```
    /// use tower_distributed::{Error, Key};
    ///
    /// fn tenant(path: &String) -> Result<Key, Error> {
    ///     path.split('/').nth(1).map(Key::from).ok_or_else(|| Error::bad_request("the path names no tenant"))
    /// }
    /// assert!(tenant(&"x".to_owned()).unwrap_err().is_bad_request());
    /// ```
    pub fn bad_request(text: impl Into<String>) -> Self {
        Self(Arc::new(Kind::BadRequest(text.into(), Fault::Told)))
    }

    /// A bad request, by a text that clients may see.
    #[cfg(feature = "http")]
    pub(crate) fn malformed(text: impl Into<String>) -> Self {
        Self(Arc::new(Kind::BadRequest(text.into(), Fault::Malformed)))
    }

    /// A request without a part of its key. The text names the part, never its value.
    #[cfg(feature = "http")]
    pub(crate) fn missing_part(text: impl Into<String>) -> Self {
        Self(Arc::new(Kind::BadRequest(text.into(), Fault::Missing)))
    }

    /// A request without an extension of this type: the layers are in the wrong order.
    #[cfg(feature = "http")]
    pub(crate) fn no_extension<T>() -> Self {
        Self(Arc::new(Kind::NoExtension(std::any::type_name::<T>())))
    }

    /// An error for a key that cannot be looked up now, as in an outage of a database: see
    /// [`look_up`](crate::extract::look_up). It refuses the request as [`LookUpFailed`](crate::RefusalKind::LookUpFailed):
    /// 503 over HTTP, `UNAVAILABLE` over gRPC. `cause` is its [`source`](StdError::source), and clients do not see it.
    ///
    /// ```
    /// use tower_distributed::Error;
    ///
    /// assert!(Error::look_up_failed("no connection to the database").is_look_up_failed());
    /// ```
    pub fn look_up_failed(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(Arc::new(Kind::LookUpFailed(cause.into().into())))
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self(Arc::new(Kind::Invalid(text.into())))
    }

    /// `decision` is the decision of the limit that refused.
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

    /// The text names the time limit.
    #[cfg(feature = "http")]
    pub(crate) fn body_timeout(text: &'static str) -> Self {
        Self(Arc::new(Kind::BodyTimeout(text)))
    }

    pub(crate) fn duplicate() -> Self {
        Self::duplicate_as("already handled")
    }

    /// The text says whether the outcome can be had.
    pub(crate) fn duplicate_as(text: &'static str) -> Self {
        Self(Arc::new(Kind::Duplicate(text)))
    }

    #[cfg(feature = "http")]
    pub(crate) fn upload(upload: Upload) -> Self {
        Self(Arc::new(Kind::Upload(upload)))
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

    /// Whether a setting or an argument is invalid. The text names it and the allowed values.
    ///
    /// ```
    /// use tower_distributed::{Quota, Store, TokenBucket};
    ///
    /// let error = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(0)).unwrap_err();
    /// assert!(error.is_invalid());
    /// assert!(error.to_string().ends_with("the rate must be at least 1 per period, is 0"));
    /// ```
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(*self.0, Kind::Invalid(_) | Kind::NoExtension(_))
    }

    /// Whether the limit refused the call, or another caller holds the lock, permit, flight or claim.
    ///
    /// [`retry_after`](Self::retry_after) says when to retry, and [`decision`](Self::decision) returns the decision
    /// of a token bucket.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let mutex = Mutex::new(&Store::in_memory(), "invoices")?;
    /// let _guard = mutex.lock("invoice-42").await?;
    /// assert!(mutex.try_lock("invoice-42").await.unwrap_err().is_refused());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(*self.0, Kind::Refused(_) | Kind::Busy(_))
    }

    /// Whether the call was refused after a wait: it got nothing within `max_wait`, or within the allowed number of
    /// tries.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let exports = WaitGroup::builder(1).max_wait(Duration::from_millis(10)).build(&Store::in_memory(), "exports")?;
    /// let _running = exports.add("acme").await?;
    /// let error = exports.add("acme").await.unwrap_err();
    /// assert!(error.is_waited_too_long() && error.is_refused());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_waited_too_long(&self) -> bool {
        self.busy().is_some_and(|busy| busy.why == Why::WaitedTooLong)
    }

    /// Whether the call was refused because the queue is full (`max_waiters`).
    ///
    /// ```
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let exports = WaitGroup::builder(1).max_waiters(0).build(&Store::in_memory(), "exports")?;
    /// let _running = exports.add("acme").await?;
    /// assert!(exports.add("acme").await.unwrap_err().is_queue_full());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_queue_full(&self) -> bool {
        self.busy().is_some_and(|busy| busy.why == Why::QueueFull)
    }

    /// Whether the weight is above the limit. Such a call can never be admitted.
    ///
    /// ```
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
    /// assert!(exports.add_n("acme", 3).await.unwrap_err().is_exceeds_limit());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_exceeds_limit(&self) -> bool {
        matches!(*self.0, Kind::ExceedsLimit { .. })
    }

    /// Whether the lease is no longer held: it has expired or was revoked.
    ///
    /// Extending or releasing such a lease returns this error. A layer also returns it for a request that it cancelled
    /// because its lease was lost.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let builder = Mutex::builder().ttl(Duration::from_millis(50)).watchdog(false); // the lock is not renewed
    /// let mutex = builder.build(&Store::in_memory(), "invoices")?;
    /// let guard = mutex.lock("invoice-42").await?;
    /// tokio::time::sleep(Duration::from_millis(100)).await;
    /// assert!(guard.extend().await.unwrap_err().is_lost());
    /// assert!(guard.unlock_checked().await.unwrap_err().is_lost());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(*self.0, Kind::Lost)
    }

    /// Whether a response body was aborted at a time limit of `response::UntilBodyEnd`, and its lease released.
    /// `response::LeaseEnd` has an example.
    #[must_use]
    pub fn is_body_timeout(&self) -> bool {
        matches!(*self.0, Kind::BodyTimeout(_))
    }

    /// Whether a key extractor could not get a key from the request: [`bad_request`](Self::bad_request), or a part of the
    /// key [is missing](Self::is_missing_part).
    ///
    /// ```
    /// use tower_distributed::{Error, Refusal, RefusalKind};
    ///
    /// let error = Error::bad_request("the path names no tenant");
    /// assert!(error.is_bad_request());
    /// assert_eq!(Refusal::from(error).kind(), RefusalKind::BadRequest);
    /// ```
    #[must_use]
    pub fn is_bad_request(&self) -> bool {
        matches!(*self.0, Kind::BadRequest(..))
    }

    /// Whether a request lacks a part of its key, such as a header field. The text names the part. Such an error is also a
    /// [bad request](Self::is_bad_request).
    ///
    /// ```
    /// use http::Request;
    /// use tower_distributed::{KeyExtractor, Refusal, RefusalKind, extract::header};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let error = header("x-tenant")?.extract(&Request::new(())).await.unwrap_err();
    /// assert!(error.is_missing_part() && error.is_bad_request());
    /// assert_eq!(error.to_string(), "the header field x-tenant is missing");
    /// assert_eq!(Refusal::from(error).kind(), RefusalKind::MissingPart);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_missing_part(&self) -> bool {
        matches!(*self.0, Kind::BadRequest(_, Fault::Missing))
    }

    /// Whether an extractor found nothing in the request, so that another one may be used.
    pub(crate) fn is_absence(&self) -> bool {
        self.is_missing_part() || self.is_no_extension()
    }

    /// Whether a request lacks the extension that its key is made of.
    pub(crate) fn is_no_extension(&self) -> bool {
        matches!(*self.0, Kind::NoExtension(_))
    }

    /// Whether clients may see the text of a bad request.
    #[cfg(feature = "http")]
    pub(crate) fn is_for_clients(&self) -> bool {
        matches!(*self.0, Kind::BadRequest(_, Fault::Malformed | Fault::Missing))
    }

    /// Whether a key could not be looked up: [`look_up_failed`](Self::look_up_failed).
    #[must_use]
    pub fn is_look_up_failed(&self) -> bool {
        matches!(*self.0, Kind::LookUpFailed(_))
    }

    /// Whether the item is a duplicate: it was already handled, according to a filter or a record.
    ///
    /// ```
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Dedupe, DedupeLayer, Refusal, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let day = std::time::Duration::from_secs(86_400);
    /// let events = Dedupe::exact(&Store::in_memory(), "events").remember_for(day).build()?;
    /// let once = DedupeLayer::new(events, |event: &&'static str| *event);
    /// let mut handle = once.layer(service_fn(async |_: &'static str| Ok::<_, std::io::Error>("handled")));
    ///
    /// handle.ready().await?.call("evt_1").await?;
    /// let error = handle.ready().await?.call("evt_1").await.unwrap_err();
    /// assert!(error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.get_ref().is_duplicate()));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        matches!(*self.0, Kind::Duplicate(_))
    }

    /// Whether the call ended because `close` was called, or because its runtime shut down.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let jobs = Mutex::new(&Store::in_memory(), "jobs")?;
    /// jobs.close(); // this process shuts down
    /// assert!(jobs.lock("report").await.unwrap_err().is_interrupted());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(*self.0, Kind::Interrupted)
    }

    /// Returns when to retry after a refusal, if known. After an overload and in an outage this is 1 s.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Quota, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_minute(1))?;
    /// let bucket = bucket.with_max_wait(Duration::from_secs(10));
    /// bucket.wait("ann").await?;
    /// let error = bucket.wait("ann").await.unwrap_err(); // the next token comes in 60 s
    /// assert!(error.retry_after().is_some_and(|after| after > Duration::from_secs(50)));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match &*self.0 {
            Kind::Refused(refused) => refused.retry_after,
            Kind::Busy(busy) => busy.retry_after,
            Kind::Overloaded(_) | Kind::Upload(Upload::NoRoom(_)) => Some(RETRY_SOON),
            Kind::Unavailable(_) if self.is_away() && !self.is_denied() => Some(RETRY_SOON),
            _ => None,
        }
    }

    /// Whether the cost is above the burst. Such a call can never be admitted.
    ///
    /// ```
    /// use tower_distributed::{Quota, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_minute(60).burst(10))?;
    /// assert!(bucket.allow_n("ann", 11).await.unwrap_err().is_exceeds_burst());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_exceeds_burst(&self) -> bool {
        matches!(*self.0, Kind::ExceedsBurst { .. })
    }

    /// Whether the store gave no usable answer: it is down, unreachable, too slow, or does not serve.
    ///
    /// ```
    /// use tower_distributed::{Quota, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::redis("redis://127.0.0.1:1/")?; // no server listens there
    /// let bucket = TokenBucket::new(&store, "mail", Quota::per_minute(10))?;
    /// let error = bucket.allow("ann").await.unwrap_err();
    /// assert!(error.is_unavailable() && !error.is_refused());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(*self.0, Kind::Unavailable(_))
    }

    /// Whether the store refused the operation because a bound is reached, such as
    /// [`max_keys`](crate::StoreBuilder::max_keys), or a layer refused a request because it has no room for its body. The
    /// operation did not run.
    ///
    /// This is neither an outage nor a refusal by a limit. No layer admits a request because of it, even if the
    /// layer is set to fail open. [`retry_after`](Self::retry_after) returns 1 s.
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
        matches!(*self.0, Kind::Overloaded(_) | Kind::Upload(Upload::NoRoom(_)))
    }

    /// Whether the store gave no answer within its timeout. The operation may or may not have run.
    ///
    /// ```
    /// use tower_distributed::{Quota, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_minute(10))?;
    /// match bucket.charge("ann", 5).await {
    ///     // The tokens may be charged already, so a repeated call could charge them twice.
    ///     Err(error) if error.is_timeout() => eprintln!("not repeated: {error}"),
    ///     charged => println!("{} tokens left", charged?.remaining()),
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.outage().is_some_and(|outage| outage.cause == Cause::TimedOut)
    }

    /// Whether a key of this crate holds a value of another type. The value is not changed: delete it, or choose
    /// another name.
    ///
    /// Such an error is also [unavailable](Self::is_unavailable), but it is not an outage: no layer admits a
    /// request because of it.
    ///
    /// ```no_run
    /// use tower_distributed::{Quota, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::builder().prefix("shop").redis("redis://127.0.0.1/")?;
    /// let bucket = TokenBucket::new(&store, "mail", Quota::per_minute(10))?;
    /// match bucket.allow("ann").await {
    ///     Err(error) if error.is_wrong_type() => eprintln!("another program writes keys with this prefix: {error}"),
    ///     decision => println!("admitted: {}", decision?.is_admitted()),
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_wrong_type(&self) -> bool {
        self.outage().is_some_and(|outage| outage.cause == Cause::WrongType)
    }

    /// Whether the store is unavailable, so that `StoreFailure` applies.
    pub(crate) fn is_away(&self) -> bool {
        self.is_unavailable() && !self.is_wrong_type()
    }

    /// Whether the server denies the operation, so that another attempt fails as well.
    pub(crate) fn is_denied(&self) -> bool {
        self.outage().is_some_and(|outage| outage.cause == Cause::Denied)
    }

    /// Returns the decision of the limit that refused.
    pub(crate) fn refused_with<D: Any>(&self) -> Option<&D> {
        match &*self.0 {
            Kind::Refused(refused) => refused.decision.downcast_ref(),
            _ => None,
        }
    }

    /// Whether the runtime of the call has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.outage().is_some_and(|outage| outage.cause == Cause::Ended)
    }

    /// Whether the operation was certainly not sent to the store.
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

    pub(crate) fn as_upload(&self) -> Option<Upload> {
        match *self.0 {
            Kind::Upload(upload) => Some(upload),
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

/// Lets `TryInto<_, Error: Into<Error>>` bounds accept conversions that cannot fail.
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
            Kind::Invalid(text) | Kind::BadRequest(text, _) => f.write_str(text),
            Kind::NoExtension(name) => write!(
                f,
                "the request has no extension `{name}`: put the layer that inserts it outside of this one"
            ),
            Kind::LookUpFailed(cause) => write!(f, "the key of the request cannot be looked up: {cause}"),
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
            Kind::Lost => f.write_str("the lease is not held: it has expired or was revoked"),
            Kind::BodyTimeout(text) => write!(f, "response body aborted: {text}"),
            Kind::Duplicate(text) => f.write_str(text),
            Kind::Upload(upload) => upload.fmt(f),
            Kind::Interrupted => f.write_str("closed while waiting"),
            Kind::Unavailable(outage) => write!(f, "store unavailable: {}", outage.text),
            Kind::Overloaded(text) => write!(f, "store overloaded: {text}"),
        }
    }
}

impl fmt::Display for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(bytes) => write!(f, "the request body is larger than {bytes} bytes"),
            Self::TooSlow(span) => write!(f, "the request body was not complete after {span:?}"),
            Self::NoRoom(bytes) => {
                write!(f, "overloaded: the request bodies that are held would exceed {bytes} bytes")
            }
            Self::KeyReused(part) => {
                write!(f, "the idempotency key was used for another request, with another {part}")
            }
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.why, self.subject) {
            (Why::Taken, Subject::Permit) => "no permit is free",
            (Why::Taken, Subject::Lock) => "the lock is held",
            (Why::Taken, Subject::Flight) => "another caller is handling it",
            (Why::QueueFull, Subject::Permit) => "the queue for permits is full",
            (Why::QueueFull, Subject::Lock) => "the queue for the lock is full",
            (Why::QueueFull, Subject::Flight) => "the queue for another caller's result is full",
            (Why::WaitedTooLong, Subject::Permit) => "no permit became free in time",
            (Why::WaitedTooLong, Subject::Lock) => "the lock did not become free in time",
            (Why::WaitedTooLong, Subject::Flight) => "another caller did not finish in time",
        })
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.0 {
            Kind::LookUpFailed(cause) => Some(cause.as_ref()),
            Kind::Unavailable(Outage { source: Some(cause), .. }) => Some(cause.as_ref()),
            _ => None,
        }
    }
}
