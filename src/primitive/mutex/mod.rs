//! A distributed mutex per key, on one Redis or on a quorum of independent ones.
//!
//! ```
//! use tower_distributed::{Mutex, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let invoices = Mutex::new(&store, "invoices")?;
//!
//! let guard = invoices.lock("invoice-42").await?;
//! println!("fencing token {}", guard.fence());
//! assert!(invoices.try_lock("invoice-42").await.unwrap_err().is_refused());
//! assert!(guard.unlock().await?); // it was held to the end
//! # Ok(()) }
//! ```
//!
//! # What holds
//!
//! Who waits on one server is woken; on a quorum and with [`exact_names`](MutexBuilder::exact_names) it polls. Within a process the lock goes round in the order of arrival, through whatever values of
//! that name it is asked for. A process that has the lock hands it on within itself without asking the store, each time with
//! a greater fence: up to 31 times or for 2 ms, whichever is first (lock cohorting; Dice, Marathe, Shavit, "Lock Cohorting",
//! PPoPP 2012). Then the process has its turn that has waited longest. So a process waits for at most one such turn of each
//! other process. [`strict_fifo`](MutexBuilder::strict_fifo) keeps the order of arrival across processes instead, at the cost
//! of a call each time.
//!
//! The lock of a crashed process is free again after its [time to live](MutexBuilder::ttl). While a guard is held it is
//! renewed, and it tells when it is [lost](Lease::lost). The [fencing token](MutexGuard::fence) only grows, so that
//! what is written to can refuse a holder that does not know yet that it is none: see [`pitfalls`](crate::pitfalls).
//! A future that is granted the lock and not polled keeps it for 1 s at most; where it had just asked for a lock that was
//! free, for the time that [a call can take](crate::StoreBuilder#how-long-a-call-can-take) and 1.5 s. Then it goes to the
//! next, and the future asks anew.
//!
//! # Beside locks of others
//!
//! The lock is a plain string with a time to live, set if there is none, and compared before it is deleted: what
//! redsync, rslock, node-redlock and the pattern in Redis's documentation do. With
//! [`exact_names`](MutexBuilder::exact_names) it has the name that they give it, and they exclude ours and the other
//! way round. They poll, and would never find a lock free that goes from one who waits in a queue to the next. So with exact
//! names those who wait here poll as well, every [`retry_delay`](MutexBuilder::retry_delay), and all have the same chance.
//!
//! # On a quorum (Redlock)
//!
//! [`quorum`](Mutex::quorum) locks on several servers that know nothing of each other, and holds what a majority has
//! granted (Antirez, "Distributed locks with Redis"). It survives the loss of a minority of servers and of their
//! state; in return there is no queue: those who wait try again after a delay. Four servers tolerate the loss of one,
//! as three do, so take an odd number. The fencing token costs a second round trip, in which a majority learns it.
//!
//! # Coming from redsync, gocorex, rslock
//!
//! | there | here |
//! |---|---|
//! | redsync `NewMutex(name, options…)` | [`Mutex::builder`], [`MutexBuilder::build`]; the name is the key of each call |
//! | several pools | [`MutexBuilder::build_quorum`] |
//! | `WithExpiry` (8 s) | [`ttl`](MutexBuilder::ttl) (30 s, renewed; 10 ms at least, of which the allowance for clocks takes 2 ms and more) |
//! | `WithTries` (32) | [`tries`](MutexBuilder::tries) (none on one server: waits its turn; 32 on a quorum) |
//! | `WithRetryDelay`, `WithRetryDelayFunc` (50–250 ms) | [`retry_delay`](MutexBuilder::retry_delay), [`retry_delay_with`](MutexBuilder::retry_delay_with); called before each pause, but for exact names with `strict_fifo`: once, when it is built |
//! | `WithDriftFactor` (0.01) | [`drift_factor`](MutexBuilder::drift_factor) |
//! | `WithTimeoutFactor` (0.05) | [`timeout_factor`](MutexBuilder::timeout_factor) |
//! | `WithGenValueFunc`, `WithValue` | [`value_with`](MutexBuilder::value_with); a value does not make two holders one; one that a guard of this process has already is refused |
//! | `WithSetNXOnExtend` | none: what was lost is never taken again by extending; lock anew |
//! | `WithFailFast` | [`fail_fast`](MutexBuilder::fail_fast) |
//! | `WithShufflePools` | [`shuffle_nodes`](MutexBuilder::shuffle_nodes) |
//! | `Lock`, `TryLock`, `Unlock` | [`lock`](Mutex::lock), [`try_lock`](Mutex::try_lock), [`unlock`](MutexGuard::unlock) |
//! | `Extend`, a goroutine that does so | [`extend`](Lease::extend), [`watchdog`](MutexBuilder::watchdog) |
//! | `Until`, `Value`, `Name` | [`until`](Lease::until), [`token`](Lease::token), [`key`](Lease::key) |
//! | `ErrTaken`, `ErrFailed`; `ErrLockAlreadyExpired` | [`Error::is_refused`], [`Error::is_unavailable`]; [`Error::is_lost`], by [`extend`](Lease::extend) and [`unlock_checked`](MutexGuard::unlock_checked) |
//! | gocorex `NewLock(client, key, expiration)`, `Lock(id)`, `UnLock(id)` | [`try_lock`](Mutex::try_lock), [`unlock`](MutexGuard::unlock); `id` by [`value_with`](MutexBuilder::value_with) |
//! | rslock `LockManager`, `lock`, `acquire`, `extend`, `unlock` | [`Mutex::quorum`], [`try_lock`](Mutex::try_lock), [`lock`](Mutex::lock), [`extend`](Lease::extend), [`unlock`](MutexGuard::unlock) |
//! | "lock or skip" (billing) | [`try_run`](Mutex::try_run), [`MutexLayer`](crate::MutexLayer) |

mod builder;
pub(crate) mod holder;
mod quorum;
#[cfg(test)]
mod tests;
mod values;

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::builder::Settings;
use self::holder::{Exclusive, suffix};
use self::quorum::Quorum;
use self::values::Values;
use super::lease::{Ask, Lease, Leases, Wait};
use crate::error::{Busy, Subject, Why};
use crate::store::check_exact;
use crate::store::timer::sleep;
use crate::telemetry::Decisions;
use crate::{Error, Key, LeaseHandle, Store};

pub use self::builder::MutexBuilder;

/// A namespace of mutexes, one per key. A cheap clone; see the [module](self) for the whole story.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time: who waits leaves the queue, and what was granted meanwhile is
/// given back, from a task of its own.
#[derive(Clone, Debug)]
pub struct Mutex {
    place: Place,
    name: Arc<str>,
    settings: Arc<Settings>,
    values: Arc<Values>,
    decisions: Decisions,
}

#[derive(Clone, Debug)]
enum Place {
    Store(Leases<Exclusive>),
    Quorum(Arc<Quorum>),
}

impl Mutex {
    /// The mutexes of the namespace `name` in a store. For other settings there is the [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// As [`MutexBuilder::build`].
    pub fn new(store: &Store, name: &str) -> Result<Self, Error> {
        Self::builder().build(store, name)
    }

    /// The mutexes of the namespace `name` on several independent stores.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let nodes = [Store::in_memory(), Store::in_memory(), Store::in_memory()];
    /// let mutex = Mutex::quorum(nodes, "leaders")?;
    /// let guard = mutex.lock("eu-1").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`MutexBuilder::build_quorum`].
    pub fn quorum(stores: impl IntoIterator<Item = Store>, name: &str) -> Result<Self, Error> {
        Self::builder().build_quorum(stores, name)
    }

    /// Settings of a namespace.
    pub fn builder() -> MutexBuilder {
        MutexBuilder::default()
    }

    /// Locks; waits its turn.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) where it takes longer than the longest wait or more than the tries allowed,
    /// or too many wait already; [`is_interrupted`](Error::is_interrupted) after [`close`](Self::close);
    /// [`is_unavailable`](Error::is_unavailable); [`is_invalid`](Error::is_invalid) where an exact name or a value
    /// is not allowed.
    pub async fn lock(&self, key: impl Into<Key>) -> Result<MutexGuard, Error> {
        self.decisions.admitted(self.wait(key.into(), self.settings.wait).await)
    }

    /// Locks, if that is possible now and nobody waits.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) where it is not, and as [`lock`](Self::lock).
    pub async fn try_lock(&self, key: impl Into<Key>) -> Result<MutexGuard, Error> {
        let locked = self.ask(key.into(), None).await;
        self.decisions.admitted(locked)
    }

    /// Locks, does the work, and has it unlocked when it returns; waits its turn.
    ///
    /// The work is done in the caller's task, and goes on where the lock is lost: [`LeaseHandle::lost`] tells.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub async fn run<F: Future>(
        &self,
        key: impl Into<Key>,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<F::Output, Error> {
        Ok(self.lock(key).await?.run(work).await)
    }

    /// As [`run`](Self::run), if that is possible now and nobody waits: "lock or skip", so that two processes never do the
    /// same work at a time.
    ///
    /// ```
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # async fn bill(_user: u64) {}
    /// let bills = Mutex::new(&Store::in_memory(), "bills")?;
    /// match bills.try_run("user-7", |_| bill(7)).await {
    ///     Ok(()) => println!("billed"),
    ///     Err(error) if error.is_refused() => println!("skipped: another process bills user 7"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock).
    pub async fn try_run<F: Future>(
        &self,
        key: impl Into<Key>,
        work: impl FnOnce(LeaseHandle) -> F,
    ) -> Result<F::Output, Error> {
        Ok(self.try_lock(key).await?.run(work).await)
    }

    /// Whether anybody holds it now, this process or another.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn is_locked(&self, key: impl Into<Key>) -> Result<bool, Error> {
        match &self.place {
            Place::Store(leases) => Ok(leases.admission.inspect(key.into()).await?.what.used > 0),
            Place::Quorum(quorum) => quorum.is_locked(key.into()).await,
        }
    }

    /// Sends away those who wait through this value or its clones, now or later. Guards stay.
    pub fn close(&self) {
        match &self.place {
            Place::Store(leases) => leases.close(),
            Place::Quorum(quorum) => quorum.close(),
        }
    }

    /// The name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Locks by waiting for up to `longest`, or not at all. Not counted as a decision.
    pub(crate) async fn acquire(&self, key: Key, longest: Option<Duration>) -> Result<MutexGuard, Error> {
        match longest {
            None => self.ask(key, None).await,
            longest => self.wait(key, Wait { longest, ..self.settings.wait }).await,
        }
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// Waits for a turn, or tries again and again where there are no turns.
    async fn wait(&self, key: Key, wait: Wait) -> Result<MutexGuard, Error> {
        let tries = match (&self.place, self.settings.tries) {
            (Place::Store(_), None) if self.settings.polls() => u32::MAX,
            (Place::Store(_), None) => return self.ask(key, Some(wait)).await,
            (Place::Store(_), Some(tries)) => tries,
            (Place::Quorum(_), tries) => tries.unwrap_or(32),
        };
        self.try_often(key, wait.longest, tries).await
    }

    /// One attempt, with or without a place in the queue.
    async fn ask(&self, key: Key, wait: Option<Wait>) -> Result<MutexGuard, Error> {
        if self.settings.exact_names {
            match &self.place {
                Place::Store(leases) => check_exact(&key, leases.admission.store.prefix())?,
                Place::Quorum(quorum) => quorum.check_exact(&key)?,
            }
        }
        let (suffix, in_use) = match self.settings.value.as_ref().map(|value| value()) {
            Some(value) if value.is_empty() => {
                return Err(Error::invalid("the value of a lock must not be empty"));
            }
            Some(value) => (suffix(&value), Some(self.values.take(&key, &value)?)),
            None => (String::new(), None),
        };
        let lease = match &self.place {
            Place::Store(leases) => leases.acquire(key, Ask::new(Subject::Lock, suffix, 0, wait)).await?,
            Place::Quorum(quorum) => Arc::clone(quorum).acquire(key, &suffix).await?,
        };
        // The value is free once its lock was given back.
        Ok(MutexGuard(match in_use {
            Some(in_use) => lease.beside(in_use),
            None => lease,
        }))
    }

    /// Attempts with pauses in between.
    async fn try_often(&self, key: Key, longest: Option<Duration>, tries: u32) -> Result<MutexGuard, Error> {
        let settings = &self.settings;
        let deadline = longest.and_then(|longest| Instant::now().checked_add(longest));
        let mut closed = match &self.place {
            Place::Store(leases) => leases.holding.closed.subscribe(),
            Place::Quorum(quorum) => quorum.closed(),
        };
        let mut tried = 0;
        loop {
            if *closed.borrow_and_update() {
                return Err(Error::interrupted());
            }
            let error = match self.ask(key.clone(), None).await {
                Ok(guard) => return Ok(guard),
                // An outage may pass too, and another node may answer.
                Err(error) if error.is_refused() || error.is_away() => error,
                Err(error) => return Err(error),
            };
            tried += 1;
            let delay = settings.retry_delay(tried);
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if tried >= tries || left.is_some_and(|left| delay > left) {
                return Err(if error.is_refused() { waited_too_long(&error) } else { error });
            }
            tokio::select! {
                () = sleep(delay) => {}
                _ = closed.changed() => {}
            }
        }
    }
}

fn waited_too_long(error: &Error) -> Error {
    Busy { subject: Subject::Lock, why: Why::WaitedTooLong, retry_after: error.retry_after() }.into()
}

/// A mutex that is locked. Unlocked when it is dropped.
#[derive(Debug)]
#[must_use = "a guard that is dropped unlocks its mutex"]
pub struct MutexGuard(Lease);

impl MutexGuard {
    /// The fencing token: greater than that of every holder of this key before. To be checked by what is written to.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.fence()
    }

    /// Unlocks; whether it was still held. See [`Lease::release`].
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn unlock(self) -> Result<bool, Error> {
        self.0.release().await
    }

    /// As [`unlock`](Self::unlock), with an error where it was not held to the end.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) where it was not held any more; [`is_unavailable`](Error::is_unavailable).
    pub async fn unlock_checked(self) -> Result<(), Error> {
        self.0.release_checked().await
    }

    async fn run<F: Future>(self, work: impl FnOnce(LeaseHandle) -> F) -> F::Output {
        let outcome = work(self.handle()).await;
        // Where that fails it goes on in the background.
        let _ = self.unlock().await;
        outcome
    }

    pub(crate) fn into_lease(self) -> Lease {
        self.0
    }
}

impl Deref for MutexGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}
