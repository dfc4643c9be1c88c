//! Work that is done under a lock.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use super::{Mutex, MutexGuard, Place};
use crate::lease::Watch;
use crate::{Error, Key, LeaseHandle};

/// How often a host votes for itself at a tick.
const VOTES: u32 = 8;

impl Mutex {
    /// Locks, runs `work`, and unlocks when it returns. Waits for the lock in turn.
    ///
    /// The work runs in the caller's task while the lock is renewed. If the lock is lost, the work is dropped, unless
    /// [`cancel_when_lost`](super::MutexBuilder::cancel_when_lost) is off. The [`LeaseHandle`] has the fencing token.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let documents = Mutex::new(&Store::in_memory(), "documents")?;
    /// let fence = documents.with_lock("42", async |lease| lease.fence()).await?;
    /// assert!(fence.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`is_lost`](Error::is_lost) if the lock was lost before the work was done, unless
    /// [`cancel_when_lost`](super::MutexBuilder::cancel_when_lost) is off.
    pub async fn with_lock<F: Future>(
        &self,
        key: impl Into<Key>,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<F::Output, Error> {
        self.work(self.lock(key).await?, work).await
    }

    /// As [`with_lock`](Self::with_lock), but returns at once where the lock is held: "lock or skip".
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # async fn bill(_user: u64) {}
    /// let bills = Mutex::new(&Store::in_memory(), "bills")?;
    /// match bills.try_with_lock("user-7", |_| bill(7)).await {
    ///     Ok(()) => println!("billed"),
    ///     Err(error) if error.is_refused() => println!("skipped: another process bills user 7"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), and [`is_lost`](Error::is_lost) as [`with_lock`](Self::with_lock).
    pub async fn try_with_lock<F: Future>(
        &self,
        key: impl Into<Key>,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<F::Output, Error> {
        self.work(self.try_lock(key).await?, work).await
    }

    /// Runs a scheduled job once per tick in the whole fleet: every host calls it at each tick, and one of them runs the job.
    /// Returns `None` on the others.
    ///
    /// The lock is held for half of `period` at least (and for the [`ttl`](super::MutexBuilder::ttl) at most, if the job is
    /// done by then). So a short job does not run twice where the clocks of the hosts differ by less than that, and the next
    /// tick finds the lock free. A job that takes longer than the period is not run again until it is done. A job that
    /// returns an error has run, and is not repeated in the same tick. If the process of a job exits or crashes, its lock
    /// lasts for the `ttl`: make that shorter than the period.
    ///
    /// All hosts must use the same ticks, such as each full hour. An interval that each host counts from its own start makes
    /// ticks of its own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let jobs = Mutex::new(&Store::in_memory(), "jobs")?;
    /// let hour = Duration::from_secs(3600);
    /// // On every host, at each full hour:
    /// let done = jobs.once_per_tick("report", hour, async |_lease| "reported").await?;
    /// assert_eq!(done, Some("reported"));
    /// assert_eq!(jobs.once_per_tick("report", hour, async |_lease| "reported").await?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_with_lock`](Self::try_with_lock), but a lock that is held is `Ok(None)`.
    pub async fn once_per_tick<F: Future>(
        &self,
        key: impl Into<Key>,
        period: Duration,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<Option<F::Output>, Error> {
        if period.is_zero() {
            return Err(Error::invalid("the period of a job must be above zero, is 0ns"));
        }
        let locked = match &self.place {
            Place::Store(_) => self.ask(key.into(), None).await,
            // Hosts that start at the same moment may split the vote: one of them wins at a later try.
            Place::Quorum(_) => self.try_often(key.into(), Some(period / 4), VOTES).await,
        };
        let mut guard = match self.decisions.admitted(locked) {
            Ok(guard) => guard,
            Err(error) if error.is_refused() => return Ok(None),
            Err(error) => return Err(error),
        };
        let at_least = (period / 2).min(guard.ttl()).max(guard.at_least_for());
        if at_least >= period {
            return Err(Error::invalid(format!(
                "at_least_for must be below the period of a job ({period:?}), is {at_least:?}"
            )));
        }
        guard.0.hold_at_least(at_least);
        self.work(guard, work).await.map(Some)
    }

    async fn work<F: Future>(
        &self,
        guard: MutexGuard,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<F::Output, Error> {
        let watch = Watch::new(guard.handle(), self.settings.cancel_when_lost);
        let outcome = watch.run(pin!(work(guard.handle()))).await?;
        match guard.unlock().await {
            // Another holder may have overlapped with the work.
            Ok(false) if self.settings.cancel_when_lost => Err(Error::lost()),
            // If the store does not answer, the lock is released in the background.
            Ok(_) | Err(_) => Ok(outcome),
        }
    }
}
