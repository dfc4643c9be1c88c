#![doc = include_str!("rw_lock/page.md")]

pub(crate) mod builder;
pub(crate) mod holders;

use std::sync::Arc;

use crate::error::Error;
use crate::error::reasons::Subject;
use crate::key::Key;
pub use crate::layers::rw_lock::RwLockLayer;
use crate::lease::handle::{Lease, guard};
use crate::lease::look::{Holder, Snapshot};
use crate::lease::namespace::Leases;
use crate::lease::token::Ending;
use crate::lease::waiter::{AcquireRequest, Acquired, Patience};
use crate::rw_lock::holders::ReadWrite;
use crate::store::Store;
use crate::store::redis::names::check_name;
use crate::telemetry::counters::Decisions;

pub use self::builder::RwLockBuilder;

/// A namespace of reader-writer locks, one for each key. Cheap to clone. See the [module](crate::rw_lock) for
/// details.
///
/// # Cancel safety
///
/// All methods are cancel safe. If the future is dropped, the waiter leaves the queue. A lock that was granted in the
/// meantime is released in the background.
#[derive(Clone, Debug)]
pub struct RwLock {
    pub(crate) leases: Leases<ReadWrite>,
    name: Arc<str>,
    pub(crate) decisions: Decisions,
    group: Arc<str>,
    pub(crate) settings: Settings,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    prefer_readers: bool,
    most_writers: u32,
    pub(crate) wait: Patience,
}

impl RwLock {
    /// Creates the locks of the namespace `name` in a store, with the default settings.
    ///
    /// Waits have no time limit. Use the [`builder`](Self::builder) for other settings.
    ///
    /// # Errors
    ///
    /// Same as [`RwLockBuilder::build`].
    pub fn new(store: &Store, name: &str) -> Result<Self, Error> {
        Self::builder().build(store, name)
    }

    /// Returns the same locks for a group of readers. Readers of the same group share a lock. Readers of different
    /// groups exclude each other.
    ///
    /// ```
    /// # use tower_distributed::{RwLock, Store};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let tables = RwLock::new(&Store::in_memory(), "tables")?;
    /// let (imports, reports) = (tables.with_group("imports")?, tables.with_group("reports")?);
    ///
    /// let one = imports.read("orders").await?;
    /// let other = imports.try_read("orders").await?; // imports run beside each other
    /// assert!(reports.try_read("orders").await.unwrap_err().is_refused());
    ///
    /// assert!(one.release().await?); // `false`: the lock was lost
    /// assert!(other.release().await?);
    /// assert!(reports.try_read("orders").await?.is_held());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the group is not 1 to 64 of the characters `A-Z a-z 0-9 - _ . /`.
    pub fn with_group(&self, group: &str) -> Result<Self, Error> {
        check_name("the name of a reader group", group)?;
        Ok(Self {
            group: group.into(),
            ..self.clone()
        })
    }

    /// Locks for reading. Waits until the lock is free for this reader.
    ///
    /// # Errors
    ///
    /// * [`is_refused`](Error::is_refused): the wait exceeded [`max_wait`](RwLockBuilder::max_wait), or the queue
    ///   is full ([`max_waiters`](RwLockBuilder::max_waiters)).
    /// * [`is_interrupted`](Error::is_interrupted): [`close`](Self::close) was called.
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable.
    pub async fn read(&self, key: impl Into<Key>) -> Result<RwLockReadGuard, Error> {
        self.acquire(key.into(), Access::Read, Some(self.settings.wait))
            .await
            .map(RwLockReadGuard)
    }

    /// Locks for reading if the lock is free for readers and no waiter goes first. Does not wait.
    ///
    /// # Errors
    ///
    /// * [`is_refused`](Error::is_refused): the lock is not free, or a waiter goes first.
    /// * [`is_interrupted`](Error::is_interrupted): [`close`](Self::close) was called.
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable.
    pub async fn try_read(&self, key: impl Into<Key>) -> Result<RwLockReadGuard, Error> {
        self.acquire(key.into(), Access::Read, None)
            .await
            .map(RwLockReadGuard)
    }

    /// Locks for writing. Waits until the lock is free.
    ///
    /// # Errors
    ///
    /// Same as [`read`](Self::read).
    pub async fn write(&self, key: impl Into<Key>) -> Result<RwLockWriteGuard, Error> {
        self.acquire(key.into(), Access::Write, Some(self.settings.wait))
            .await
            .map(RwLockWriteGuard)
    }

    /// Locks for writing if the lock is free and no waiter goes first. Does not wait.
    ///
    /// # Errors
    ///
    /// Same as [`try_read`](Self::try_read).
    pub async fn try_write(&self, key: impl Into<Key>) -> Result<RwLockWriteGuard, Error> {
        self.acquire(key.into(), Access::Write, None)
            .await
            .map(RwLockWriteGuard)
    }

    /// Returns the readers or the writer of a key and the number of waiters. Changes nothing. [`Snapshot`] has an
    /// example.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable.
    pub async fn inspect(&self, key: impl Into<Key>) -> Result<Snapshot, Error> {
        self.leases.namespace.look(key.into()).await
    }

    /// Revokes the lock of a holder. As after a release by the holder, waiters that fit are woken and acquire the lock.
    /// Returns whether the holder still held it.
    ///
    /// The holder's consent is not needed. A message notifies its process, which then checks the store at once, and the
    /// lock is [lost](crate::LeaseHandle::lost). A process receives messages once a caller has waited for a lock or a
    /// permit, or for `lost()` for 1 s. Without messages, the holder detects the loss at its next renewal, after a
    /// third of its ttl at most; without [`watchdog`](RwLockBuilder::watchdog), when the ttl ends.
    ///
    /// ```
    /// use tower_distributed::{RwLock, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let index = RwLock::new(&Store::in_memory(), "index")?;
    /// let stuck = index.write("products").await?;
    /// let snapshot = index.inspect("products").await?;
    /// assert!(snapshot.holders[0].is_exclusive); // a writer
    /// assert!(index.revoke("products", &snapshot.holders[0]).await?);
    /// let _reader = index.try_read("products").await?;
    /// assert!(stuck.extend().await.unwrap_err().is_lost());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the lock may have been revoked.
    pub async fn revoke(&self, key: impl Into<Key>, holder: &Holder) -> Result<bool, Error> {
        self.leases
            .namespace
            .revoke(key.into(), holder.whole_token())
            .await
    }

    /// Closes this value and its clones: pending and later calls that lock fail with an error that
    /// [is interrupted](Error::is_interrupted). Guards stay valid.
    ///
    /// ```
    /// # use tower_distributed::{RwLock, Store};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let documents = RwLock::new(&Store::in_memory(), "documents")?;
    /// let reader = documents.read("42").await?;
    /// documents.close(); // this process shuts down
    /// assert!(documents.read("42").await.unwrap_err().is_interrupted());
    /// assert!(reader.release().await?);
    /// # Ok(()) }
    /// ```
    pub fn close(&self) {
        self.leases.close();
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn acquire(
        &self,
        key: Key,
        access: Access,
        wait: Option<Patience>,
    ) -> Result<Lease, Error> {
        let Settings {
            prefer_readers,
            most_writers,
            ..
        } = self.settings;
        let (suffix, rank) = match access {
            Access::Read if self.group.is_empty() => {
                (Ending::Reader.into(), (!prefer_readers).into())
            }
            Access::Read => (format!("/r{}", self.group).into(), (!prefer_readers).into()),
            Access::Write => (
                Ending::Writer { row: most_writers }.into(),
                prefer_readers.into(),
            ),
        };
        let ask = AcquireRequest::new((), Subject::Lock, suffix, rank, wait);
        let locked = match self.leases.acquire(key, ask).await {
            Ok(Acquired::Lease(lease, _)) => Ok(lease),
            Err(error) => Err(error),
        };
        self.decisions.admitted(locked)
    }
}

/// How a lock is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}

/// A guard of a lock for reading. Dropping it releases the lock in the background.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub struct RwLockReadGuard(Lease);

/// A guard of a lock for writing. Dropping it releases the lock in the background.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub struct RwLockWriteGuard(Lease);

impl RwLockReadGuard {
    /// Returns the fencing token of the last writer before this reader.
    ///
    /// `None` if there was no writer, or if the store no longer remembers its token: see
    /// [`fence_ttl`](RwLockBuilder::fence_ttl).
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.0.fence()
    }
}

impl RwLockWriteGuard {
    /// Returns the fencing token, which is greater than the token of every earlier writer of this key.
    ///
    /// The resource that you write to should check it: see [`guarantees`](crate::guarantees).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.fence().unwrap_or(0)
    }
}

guard!(RwLockReadGuard.0, "the lock", release);
guard!(RwLockWriteGuard.0, "the lock", release);
