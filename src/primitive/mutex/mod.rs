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
//! Who waits is served in the order of arrival at the store, whatever process it waits in, and is woken: nobody polls.
//! Where those who stand right behind each other wait in one process, it gets the lock once for them all (32 at most)
//! and hands it on from one to the next, each with a fence of its own, without asking the store in between.
//! The lock of a crashed process is free again after its [time to live](MutexBuilder::ttl). While a guard is held it is
//! renewed, and it tells when it is [lost](Lease::lost). The [fencing token](MutexGuard::fence) only grows, so that
//! what is written to can refuse a holder that does not know yet that it is none: see [`pitfalls`](crate::pitfalls).
//!
//! # Beside locks of others
//!
//! The lock is a plain string with a time to live, set if there is none, and compared before it is deleted: what
//! redsync, rslock, node-redlock and the pattern in Redis's documentation do. With
//! [`exact_names`](MutexBuilder::exact_names) it has the name that they give it, and they exclude ours and the other
//! way round. They do not wake those who wait here, who then ask every [`retry_delay`](MutexBuilder::retry_delay).
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
//! | `WithExpiry` (8 s) | [`ttl`](MutexBuilder::ttl) (30 s, renewed) |
//! | `WithTries` (32) | [`tries`](MutexBuilder::tries) (none on one server: waits its turn; 32 on a quorum) |
//! | `WithRetryDelay`, `WithRetryDelayFunc` (50–250 ms) | [`retry_delay`](MutexBuilder::retry_delay), [`retry_delay_with`](MutexBuilder::retry_delay_with) |
//! | `WithDriftFactor` (0.01) | [`drift_factor`](MutexBuilder::drift_factor) |
//! | `WithTimeoutFactor` (0.05) | [`timeout_factor`](MutexBuilder::timeout_factor) |
//! | `WithGenValueFunc`, `WithValue` | [`value_with`](MutexBuilder::value_with) |
//! | `WithFailFast` | [`fail_fast`](MutexBuilder::fail_fast) |
//! | `WithShufflePools` | [`shuffle_nodes`](MutexBuilder::shuffle_nodes) |
//! | `Lock`, `TryLock`, `Unlock` | [`lock`](Mutex::lock), [`try_lock`](Mutex::try_lock), [`unlock`](MutexGuard::unlock) |
//! | `Extend`, a goroutine that does so | [`extend`](Lease::extend), [`watchdog`](MutexBuilder::watchdog) |
//! | `Until`, `Value`, `Name` | [`until`](Lease::until), [`token`](Lease::token), [`key`](Lease::key) |
//! | `ErrTaken`, `ErrFailed`; `ErrLockAlreadyExpired` | [`Error::is_refused`], [`Error::is_unavailable`]; [`Error::is_lost`] |
//! | gocorex `NewLock(client, key, expiration)`, `Lock(id)`, `UnLock(id)` | [`try_lock`](Mutex::try_lock), [`unlock`](MutexGuard::unlock); `id` by [`value_with`](MutexBuilder::value_with) |
//! | rslock `LockManager`, `lock`, `acquire`, `extend`, `unlock` | [`Mutex::quorum`], [`try_lock`](Mutex::try_lock), [`lock`](Mutex::lock), [`extend`](Lease::extend), [`unlock`](MutexGuard::unlock) |
//! | "lock or skip" (billing) | [`try_lock`](Mutex::try_lock), and skip where it [is refused](Error::is_refused) |

mod builder;
pub(crate) mod holder;
mod quorum;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;

use tokio::time::Instant;

use self::builder::Settings;
use self::holder::{Exclusive, suffix};
use self::quorum::Quorum;
use super::lease::{Admission, Ask, Lease, Wait};
use crate::error::{Busy, Subject, Why};
use crate::store::check_exact;
use crate::store::timer::sleep;
use crate::telemetry::Decisions;
use crate::{Error, Key, Store};

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
    decisions: Decisions,
}

#[derive(Clone, Debug)]
enum Place {
    Store(Arc<Admission<Exclusive>>),
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
        let key = key.into();
        let locked = match (&self.place, self.settings.tries) {
            (Place::Store(_), None) => self.ask(key, Some(self.settings.wait)).await,
            (Place::Store(_), Some(tries)) => self.try_often(key, tries).await,
            (Place::Quorum(_), tries) => self.try_often(key, tries.unwrap_or(32)).await,
        };
        self.decisions.admitted(locked)
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

    /// Whether anybody holds it now, this process or another.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn is_locked(&self, key: impl Into<Key>) -> Result<bool, Error> {
        match &self.place {
            Place::Store(admission) => Ok(admission.inspect(key.into()).await?.what.used > 0),
            Place::Quorum(quorum) => quorum.is_locked(key.into()).await,
        }
    }

    /// Sends away those who wait through this value or its clones, now or later. Guards stay.
    pub fn close(&self) {
        match &self.place {
            Place::Store(admission) => admission.close(),
            Place::Quorum(quorum) => quorum.close(),
        }
    }

    /// The name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One attempt, with or without a place in the queue.
    async fn ask(&self, key: Key, wait: Option<Wait>) -> Result<MutexGuard, Error> {
        if self.settings.exact_names {
            match &self.place {
                Place::Store(admission) => check_exact(&key, admission.store.prefix())?,
                Place::Quorum(quorum) => quorum.check_exact(&key)?,
            }
        }
        let suffix = match &self.settings.value {
            Some(value) => suffix(&value()),
            None => String::new(),
        };
        if suffix == ":" {
            return Err(Error::invalid("the value of a lock must not be empty"));
        }
        let lease = match &self.place {
            Place::Store(admission) => {
                let ask = Ask::new(Subject::Lock, suffix, 0, wait);
                Arc::clone(admission).acquire(key, ask).await
            }
            Place::Quorum(quorum) => Arc::clone(quorum).acquire(key, &suffix).await,
        };
        lease.map(MutexGuard)
    }

    /// Attempts with pauses in between.
    async fn try_often(&self, key: Key, tries: u32) -> Result<MutexGuard, Error> {
        let settings = &self.settings;
        let deadline = settings.wait.longest.and_then(|longest| Instant::now().checked_add(longest));
        let mut closed = match &self.place {
            Place::Store(admission) => admission.closed(),
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
}

impl Deref for MutexGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}
