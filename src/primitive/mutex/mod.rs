//! The mutexes. See the public module `mutex`.

mod builder;
pub(crate) mod holder;
mod jobs;
mod quorum;
#[cfg(test)]
mod tests;
mod values;

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
use crate::{Error, Key, Store};

pub use self::builder::MutexBuilder;

/// A namespace of mutexes, one per key. A cheap clone; see the [module](crate::mutex) for the whole story.
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
    /// [`is_refused`](Error::is_refused) where it takes longer than `max_wait` or more than the tries allowed,
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

    /// Locks by waiting for up to `max_wait`, or not at all. Not counted as a decision.
    pub(crate) async fn acquire(&self, key: Key, max_wait: Option<Duration>) -> Result<MutexGuard, Error> {
        match max_wait {
            None => self.ask(key, None).await,
            max_wait => self.wait(key, Wait { max_wait, ..self.settings.wait }).await,
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
        self.try_often(key, wait.max_wait, tries).await
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
    async fn try_often(&self, key: Key, max_wait: Option<Duration>, tries: u32) -> Result<MutexGuard, Error> {
        let settings = &self.settings;
        let deadline = max_wait.and_then(|max_wait| Instant::now().checked_add(max_wait));
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
