//! Work that is done under a lock.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::{Mutex, MutexGuard};
use crate::{Error, Key, LeaseHandle};

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
    /// As [`lock`](Self::lock), and [`is_lost`](Error::is_lost) where the work was dropped.
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
    /// As [`try_lock`](Self::try_lock), and [`is_lost`](Error::is_lost) where the work was dropped.
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
    /// tick finds the lock free. A job that takes longer than the period is not run again until it is done.
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
        let mut guard = match self.try_lock(key).await {
            Ok(guard) => guard,
            Err(error) if error.is_refused() => return Ok(None),
            Err(error) => return Err(error),
        };
        let at_least = (period / 2).min(guard.ttl()).max(guard.at_least_for());
        guard.0.hold_at_least(at_least);
        self.work(guard, work).await.map(Some)
    }

    async fn work<F: Future>(
        &self,
        guard: MutexGuard,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<F::Output, Error> {
        let outcome = if self.settings.cancel_when_lost {
            match select(pin!(guard.lost()), pin!(work(guard.handle()))).await {
                Either::Left(((), _)) => return Err(Error::lost()),
                Either::Right((outcome, _)) => outcome,
            }
        } else {
            work(guard.handle()).await
        };
        // Where that fails it goes on in the background.
        let _ = guard.unlock().await;
        Ok(outcome)
    }
}
