//! The predicates of [`Error`], and the values that it carries.

use std::any::Any;
use std::time::Duration;

use crate::error::reasons::{Busy, Cause, Outage, Upload, Why};
use crate::error::{Error, Fault, Kind};

/// The `retry_after` of an overload or an outage: the longest pause between two probes of a breaker.
const RETRY_SOON: Duration = Duration::from_secs(1);

impl Error {
    /// Whether a setting or an argument is invalid. The text names it and the allowed values.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Quota, Store, TokenBucket};
    ///
    /// let quota = Quota::new(5, Duration::ZERO);
    /// let error = TokenBucket::new(&Store::in_memory(), "api", quota).unwrap_err();
    /// assert!(error.is_invalid());
    /// assert!(error.to_string().ends_with("the period must be at least 1 µs"));
    /// ```
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(*self.0, Kind::Invalid(_) | Kind::NoExtension(_))
    }

    /// Whether the limit refused the call, or another caller holds the lock, permit, flight or claim.
    ///
    /// [`retry_after`](Self::retry_after) returns when to retry, and [`decision`](Self::decision) returns the decision
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

    /// Whether the call was refused after a wait: it was not admitted within `max_wait`, or within the allowed number
    /// of tries.
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
        self.busy()
            .is_some_and(|busy| busy.why == Why::WaitedTooLong)
    }

    /// Whether the call was refused because the queue is full (`max_waiters`), or too long to be served in time
    /// (`refuse_early`).
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
        self.busy()
            .is_some_and(|busy| matches!(busy.why, Why::QueueFull | Why::QueueTooLong))
    }

    /// Whether the call requests more than the limit can ever grant: its cost is above the burst, or its weight above
    /// the limit.
    /// Such a call can never be admitted.
    ///
    /// ```
    /// use tower_distributed::{Quota, Store, TokenBucket, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::in_memory();
    /// let bucket = TokenBucket::new(&store, "mail", Quota::per_minute(60).burst(10))?;
    /// assert!(bucket.allow_n("ann", 11).await.unwrap_err().is_exceeds_limit());
    /// let exports = WaitGroup::new(&store, "exports", 2)?;
    /// assert!(exports.add_n("acme", 3).await.unwrap_err().is_exceeds_limit());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_exceeds_limit(&self) -> bool {
        matches!(
            *self.0,
            Kind::ExceedsLimit { .. } | Kind::ExceedsBurst { .. }
        )
    }

    /// Whether the cost of the call is above the burst.
    pub(crate) fn is_exceeds_burst(&self) -> bool {
        matches!(*self.0, Kind::ExceedsBurst { .. })
    }

    /// Whether the lease is no longer held: it has expired or was revoked.
    ///
    /// [`Lease::extend`](crate::Lease::extend) and [`release_checked`](crate::Lease::release_checked) return this error
    /// for such a lease. A layer also returns it for a request that it cancelled because its lease was lost.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Lease, Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let builder = Mutex::builder().ttl(Duration::from_millis(50)).watchdog(false); // the lock is not renewed
    /// let mutex = builder.build(&Store::in_memory(), "invoices")?;
    /// let guard = mutex.lock("invoice-42").await?;
    /// tokio::time::sleep(Duration::from_millis(100)).await;
    /// assert!(guard.extend().await.unwrap_err().is_lost());
    /// assert!(Lease::from(guard).release_checked().await.unwrap_err().is_lost());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(*self.0, Kind::Lost)
    }

    /// Whether a response body was aborted at a time limit of `response::UntilBodyEnd`, which also released its lease.
    /// `response::LeaseEnd` has an example.
    #[must_use]
    pub fn is_body_timeout(&self) -> bool {
        matches!(*self.0, Kind::BodyTimeout(_))
    }

    /// Whether a key extractor could not get a key from the request: [`bad_request`](Self::bad_request), or a part of
    /// the key [is missing](Self::is_missing_part).
    pub(crate) fn is_bad_request(&self) -> bool {
        matches!(*self.0, Kind::BadRequest(..))
    }

    /// Whether a request lacks a part of its key, such as a header field. The text names the part. Such an error is
    /// also a [bad request](Self::is_bad_request).
    pub(crate) fn is_missing_part(&self) -> bool {
        matches!(*self.0, Kind::BadRequest(_, Fault::Missing))
    }

    /// Whether the request lacks what an extractor reads, so that another extractor may be used.
    pub(crate) fn is_absence(&self) -> bool {
        self.is_missing_part() || self.is_no_extension()
    }

    /// Whether a request lacks the extension that its key is made from.
    pub(crate) fn is_no_extension(&self) -> bool {
        matches!(*self.0, Kind::NoExtension(_))
    }

    /// Whether clients may see the text of a bad request.
    #[cfg(feature = "http")]
    pub(crate) fn is_for_clients(&self) -> bool {
        matches!(
            *self.0,
            Kind::BadRequest(_, Fault::Malformed | Fault::Missing)
        )
    }

    /// Whether a key could not be looked up: [`look_up_failed`](Self::look_up_failed).
    pub(crate) fn is_look_up_failed(&self) -> bool {
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

    /// Whether a change was rejected because the stored version is not the expected one. The text names both versions,
    /// and who set the stored one.
    ///
    /// ```
    /// use tower_distributed::{FleetQuotas, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let quotas = FleetQuotas::new(&Store::in_memory(), "mail", "10/min")?;
    /// quotas.set("20/min", "ann").await?;
    /// assert!(quotas.set_if(0, "5/min", "ben").await.unwrap_err().is_conflict());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(*self.0, Kind::Conflict(_))
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

    /// Whether the store gave no usable reply: it is down, unreachable, too slow, or rejects commands.
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
    /// [`max_keys`](crate::StoreBuilder::max_keys) or [`max_bytes`](crate::StoreBuilder::max_bytes), or a layer refused
    /// a request because it has no room for its body. The operation did not run.
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
        matches!(
            *self.0,
            Kind::Overloaded(_) | Kind::Upload(Upload::NoRoom(_))
        )
    }

    /// Whether the store did not reply within its timeout. The operation may or may not have run.
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
        self.outage()
            .is_some_and(|outage| outage.cause == Cause::TimedOut)
    }

    /// Whether the server has no memory for the write.
    #[cfg(feature = "dedupe")]
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.outage()
            .is_some_and(|outage| outage.cause == Cause::NotServing && outage.text.contains("OOM"))
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
        self.outage()
            .is_some_and(|outage| outage.cause == Cause::WrongType)
    }

    /// Whether the store is unavailable in a way that `StoreFailure` applies to: any outage but a wrong type.
    pub(crate) fn is_away(&self) -> bool {
        self.is_unavailable() && !self.is_wrong_type()
    }

    /// Whether the server denies the operation, so that another attempt fails as well.
    pub(crate) fn is_denied(&self) -> bool {
        self.outage()
            .is_some_and(|outage| outage.cause == Cause::Denied)
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
        self.outage()
            .is_some_and(|outage| outage.cause == Cause::Ended)
    }

    /// Whether the operation was certainly not sent to the store.
    pub(crate) fn is_not_sent(&self) -> bool {
        self.is_overloaded()
            || self
                .outage()
                .is_some_and(|outage| matches!(outage.cause, Cause::NotSent | Cause::BreakerOpen))
    }

    /// Returns the error for an operation that was sent before, and whose earlier copy may have run: it is never
    /// [`is_not_sent`](Self::is_not_sent).
    pub(crate) fn of_last_copy(self) -> Self {
        match self.outage() {
            Some(outage) if self.is_not_sent() => Outage {
                cause: Cause::Disconnected,
                ..outage.clone()
            }
            .into(),
            _ => self,
        }
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
