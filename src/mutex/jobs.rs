//! Work under a lock.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use crate::error::Error;
use crate::key::Key;
use crate::lease::handle::LeaseHandle;
use crate::lease::watch::Watch;
use crate::macros::in_range;
use crate::mutex::{Mutex, MutexGuard};

/// The maximum number of votes of a host at a tick.
const VOTES: u32 = 8;

impl Mutex {
    /// Runs a scheduled job once per tick in the whole fleet: every host calls it at each tick, and one of them runs
    /// the job. Returns `None` on the others.
    ///
    /// The lock is held for at least half of `period` (but for at most the [`ttl`](super::MutexBuilder::ttl), if the
    /// job is done by then). So a short job does not run twice if the clocks of the hosts differ by less than that, and
    /// the next tick finds the lock free. A job that takes longer than the period is not started again until it is
    /// done. A job that returns an error has run, and is not repeated at the same tick. A job that loses its lock is
    /// dropped; a task that it has spawned continues. If the process of a job exits or crashes, its lock remains for
    /// the `ttl`: choose a ttl shorter than the period.
    ///
    /// All hosts must use the same ticks, such as each full hour. An interval that each host counts from its own start
    /// has different ticks on each host.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let jobs = Mutex::new(&Store::in_memory(), "jobs")?; // ttl 30 s: for a shorter period, set a ttl below it
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
    /// The errors of [`try_lock`](Self::try_lock) and [`MutexGuard::run`], but `Ok(None)` if the lock is held.
    pub async fn once_per_tick<F: Future>(
        &self,
        key: impl Into<Key>,
        period: Duration,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<Option<F::Output>, Error> {
        if period.is_zero() {
            return Err(Error::invalid(
                "the period of a job must be above zero, is 0ns",
            ));
        }
        let locked = match self.quorum {
            None => self.ask(key.into(), None).await,
            // Hosts that start at the same moment may split the votes: then one of them wins at a later try.
            Some(_) => self.try_often(key.into(), Some(period / 4), VOTES).await,
        };
        let mut guard = match self.decisions.admitted(locked) {
            Ok(guard) => guard,
            Err(error) if error.is_refused() => return Ok(None),
            Err(error) => return Err(error),
        };
        let at_least = (period / 2).min(guard.ttl()).max(guard.at_least_for());
        in_range(
            "at_least_for",
            ..period,
            format_args!("below the period of a job ({period:?})"),
            at_least,
        )?;
        guard.0.hold_at_least(at_least);
        guard.run(work).await.map(Some)
    }
}

impl MutexGuard {
    /// Runs `work`, and unlocks when it returns.
    ///
    /// The work runs in the caller's task while the lock is renewed. If the lock is lost, the work is dropped. If the
    /// work must continue without its lock, do not use `run`: do the work, then call [`unlock`](Self::unlock). The
    /// [`LeaseHandle`] has the fencing token.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # async fn bill(_user: u64) {}
    /// let bills = Mutex::new(&Store::in_memory(), "bills")?;
    /// let fence = bills.lock("user-7").await?.run(async |lease| lease.fence()).await?;
    /// assert!(fence.is_some());
    ///
    /// // Lock or skip:
    /// match bills.try_lock("user-7").await {
    ///     Ok(lock) => lock.run(|_| bill(7)).await?,
    ///     Err(error) if error.is_refused() => println!("skipped: another process bills user 7"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) if the lock was lost before the work was done: another holder may have worked at the
    /// same time.
    pub async fn run<F: Future>(
        self,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<F::Output, Error> {
        let watch = Watch::new(Some(self.handle()));
        let outcome = watch.run(pin!(work(self.handle()))).await?;
        match self.unlock().await {
            Ok(false) => Err(Error::lost()),
            // If the store does not reply, the lock is released in the background.
            Ok(true) | Err(_) => Ok(outcome),
        }
    }
}
