#![doc = include_str!("page.md")]

pub(crate) mod holders;
pub(crate) mod layer;

pub use self::layer::{ChooseAccess, RwLockLayer};
use std::sync::Arc;
use std::time::Duration;

use self::holders::ReadWrite;
use super::lease::setters::setters;
use super::lease::{Ask, Holder, Lease, LeaseOptions, Leases, Snapshot, Wait, guard};
use crate::error::Subject;
use crate::lease::percent;
use crate::store::{Namespace, check_name};
use crate::telemetry::{self, Decisions};
use crate::{Error, Key, Store};

/// Whether readers or writers are served first if both wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prefer {
    /// Writers first. After [`most_writers`](RwLockBuilder::most_writers) writers in a row, waiting readers are
    /// served.
    #[default]
    Writers,
    /// Readers first. A writer waits until there are no readers, so it can starve.
    Readers,
}

/// A namespace of reader-writer locks, one for each key. Cheap to clone. See the [module](crate::rw_lock) for
/// details.
///
/// # Cancel safety
///
/// All methods are cancel safe. If the future is dropped, the waiter leaves the queue. A lock that was granted in the
/// meantime is released in the background.
#[derive(Clone, Debug)]
pub struct RwLock {
    leases: Leases<ReadWrite>,
    name: Arc<str>,
    decisions: Decisions,
    group: Arc<str>,
    settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    prefer: Prefer,
    most_writers: u32,
    wait: Wait,
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

    /// Returns a builder to change the settings.
    pub fn builder() -> RwLockBuilder {
        RwLockBuilder {
            settings: Settings { prefer: Prefer::Writers, most_writers: 16, wait: Wait::FOR_EVER },
            app_id: None,
            options: LeaseOptions::default(),
        }
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
    /// one.release_checked().await?; // an error if the lock was lost
    /// other.release_checked().await?;
    /// assert!(reports.try_read("orders").await?.is_held());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the group is not 1 to 64 of the characters `A-Z a-z 0-9 - _ . /`.
    pub fn with_group(&self, group: &str) -> Result<Self, Error> {
        check_name("the name of a reader group", group)?;
        Ok(Self { group: group.into(), ..self.clone() })
    }

    /// Returns the same locks with another [`max_wait`](RwLockBuilder::max_wait).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{RwLock, Store};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let documents = RwLock::new(&Store::in_memory(), "documents")?;
    /// let _writer = documents.write("42").await?;
    /// let hasty = documents.with_max_wait(Duration::from_millis(10));
    /// assert!(hasty.read("42").await.unwrap_err().is_waited_too_long());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        let wait = Wait { max_wait: Some(max_wait), ..self.settings.wait };
        Self { settings: Settings { wait, ..self.settings }, ..self.clone() }
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
        self.acquire(key.into(), Access::Read, Some(self.settings.wait)).await.map(RwLockReadGuard)
    }

    /// Locks for reading if the lock is free for readers and no waiter goes first. Does not wait.
    ///
    /// # Errors
    ///
    /// * [`is_refused`](Error::is_refused): the lock is not free, or a waiter goes first.
    /// * [`is_interrupted`](Error::is_interrupted): [`close`](Self::close) was called.
    /// * [`is_unavailable`](Error::is_unavailable): the store is unavailable.
    pub async fn try_read(&self, key: impl Into<Key>) -> Result<RwLockReadGuard, Error> {
        self.acquire(key.into(), Access::Read, None).await.map(RwLockReadGuard)
    }

    /// Locks for writing. Waits until the lock is free.
    ///
    /// # Errors
    ///
    /// Same as [`read`](Self::read).
    pub async fn write(&self, key: impl Into<Key>) -> Result<RwLockWriteGuard, Error> {
        self.acquire(key.into(), Access::Write, Some(self.settings.wait)).await.map(RwLockWriteGuard)
    }

    /// Locks for writing if the lock is free and no waiter goes first. Does not wait.
    ///
    /// # Errors
    ///
    /// Same as [`try_read`](Self::try_read).
    pub async fn try_write(&self, key: impl Into<Key>) -> Result<RwLockWriteGuard, Error> {
        self.acquire(key.into(), Access::Write, None).await.map(RwLockWriteGuard)
    }

    /// Returns the readers or the writer of a key and the number of waiters. Changes nothing. [`Snapshot`] has an example.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if the store is unavailable.
    pub async fn inspect(&self, key: impl Into<Key>) -> Result<Snapshot, Error> {
        self.leases.admission.look(key.into()).await
    }

    /// Takes a lock from its holder, as a release by the holder does: waiters that fit are woken and get it. Returns
    /// whether the holder still held it.
    ///
    /// The holder is not asked. It learns that its lock is [lost](crate::LeaseHandle::lost) at its next renewal, a third
    /// of its ttl later at most; without [`watchdog`](RwLockBuilder::watchdog) when the ttl ends.
    ///
    /// ```
    /// use tower_distributed::{RwLock, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let index = RwLock::new(&Store::in_memory(), "index")?;
    /// let stuck = index.write("products").await?;
    /// let snapshot = index.inspect("products").await?;
    /// assert!(snapshot.holders()[0].is_exclusive()); // a writer
    /// assert!(index.revoke("products", &snapshot.holders()[0]).await?);
    /// let _reader = index.try_read("products").await?;
    /// assert!(stuck.extend().await.unwrap_err().is_lost());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): the lock may have been revoked.
    pub async fn revoke(&self, key: impl Into<Key>, holder: &Holder) -> Result<bool, Error> {
        self.leases.admission.revoke(key.into(), holder.whole_token()).await
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

    pub(crate) fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    pub(crate) fn wait(&self) -> Wait {
        self.settings.wait
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.leases.admission.store.is_in_memory()
    }

    pub(crate) async fn acquire(&self, key: Key, access: Access, wait: Option<Wait>) -> Result<Lease, Error> {
        let Settings { prefer, most_writers, .. } = self.settings;
        let (suffix, rank) = match access {
            Access::Read => (format!("/r{}", self.group), i64::from(prefer == Prefer::Writers)),
            Access::Write => (format!("/w{most_writers}"), i64::from(prefer == Prefer::Readers)),
        };
        let ask = Ask::new((), Subject::Lock, suffix, rank, wait);
        let locked = self.leases.acquire(key, ask).await;
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
    /// `None` if there was no writer, or if the store has forgotten its token: see
    /// [`fence_ttl`](RwLockBuilder::fence_ttl).
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.0.fence()
    }
}

impl RwLockWriteGuard {
    /// Returns the fencing token, which is greater than that of every earlier writer of this key.
    ///
    /// The resource that you write to should check it: see [`guarantees`](crate::guarantees).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.fence().unwrap_or(0)
    }
}

guard!(RwLockReadGuard.0, "the lock", release, release_checked);
guard!(RwLockWriteGuard.0, "the lock", release, release_checked);

/// A builder for a [`RwLock`].
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::rw_lock::Prefer;
/// use tower_distributed::{RwLock, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let documents = RwLock::builder()
///     .ttl(Duration::from_millis(50))
///     .watchdog(false)                  // a writer that takes longer than 50 ms loses its lock
///     .max_wait(Duration::from_secs(5)) // `read` and `write` give up after 5 s
///     .max_waiters(100)                 // the 101st waiter is refused at once
///     .prefer(Prefer::Writers)
///     .most_writers(4)                  // after four writers, readers that wait are served
///     .app_id("editor")                 // a part of the tokens in Redis
///     .build(&Store::in_memory(), "documents")?;
///
/// let slow = documents.write("42").await?;
/// assert!(slow.token().contains("editor"));
/// let next = documents.write("42").await?; // after 50 ms
/// assert!(!slow.is_held() && next.fence() > slow.fence());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RwLockBuilder {
    settings: Settings,
    app_id: Option<Vec<u8>>,
    options: LeaseOptions,
}

setters! { RwLockBuilder:
    /// Sets the ttl of a lock, 10 ms to 1 day. Default: 30 s.
    ///
    /// The lock of a crashed process expires after this time.
    fn ttl(ttl: Duration) => options.ttl = ttl;

    /// Sets whether a lock is renewed while it is held, every third of its ttl. Default: `true`.
    fn watchdog(watchdog: bool) => options.watchdog = watchdog;

    /// Sets how long [`read`](RwLock::read) and [`write`](RwLock::write) wait. Default: no limit.
    fn max_wait(max_wait: Duration) => settings.wait.max_wait = Some(max_wait);

    /// Sets the most waiters of a key. Further waiters are refused immediately. Default: no limit. 0 refuses every
    /// call that would have to wait.
    fn max_waiters(most: u32) => settings.wait.max_waiters = most;

    /// Sets whether readers or writers are served first if both wait. Default: [`Prefer::Writers`].
    ///
    /// Use the same setting in all processes that share the namespace.
    fn prefer(prefer: Prefer) => settings.prefer = prefer;

    /// Sets how many writers in a row may pass waiting readers, at least 1. Default: 16.
    fn most_writers(most: u32) => settings.most_writers = most;

    /// Sets how long the store remembers the last [fencing token](crate::rw_lock::RwLockWriteGuard::fence) of a key
    /// that is not locked, 1 s to 365 days, in whole milliseconds, and at least the [`ttl`](Self::ttl). Default: 7 to
    /// 8 days.
    ///
    /// A remembered token takes about 160 B in Redis. Set less if you lock many keys, each of them seldom.
    ///
    /// Each writer and each renewal of its lock starts the time anew. After it, the next token is the time of the
    /// server (µs since 1970). It is greater than all earlier tokens of the key, unless the clock of the server has
    /// been set back by `fence_ttl` or more since the last writer. A failover to a server whose clock is behind sets
    /// the clock back, too. A [reader](crate::rw_lock::RwLockReadGuard::fence) gets no token after this time.
    ///
    /// The last writer sets the time for its key, so use the same setting in all processes. With different settings,
    /// tokens still rise, but the shortest setting limits how far clocks may be set back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::{RwLock, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let hour = Duration::from_secs(3600); // more than the clock of the server is ever set back
    /// let uploads = RwLock::builder().fence_ttl(hour).build(&Store::in_memory(), "uploads")?;
    /// let first = uploads.write("4711").await?;
    /// let fence = first.fence();
    /// first.release().await?;
    /// assert!(uploads.write("4711").await?.fence() > fence);
    ///
    /// let error = RwLock::builder().fence_ttl(Duration::ZERO).build(&Store::in_memory(), "uploads").unwrap_err();
    /// assert_eq!(error.to_string(), "fence_ttl must be 1 s to 365 days, is 0ns");
    /// # Ok(()) }
    /// ```
    fn fence_ttl(fence_ttl: Duration) => options.fence_ttl = Some(fence_ttl);

    /// Sets an id that the tokens in Redis contain, to identify the application that holds a lock. 1 to 64 bytes.
    /// Default: none.
    ///
    /// Bytes other than `A-Z a-z 0-9 - _ .` are percent-encoded.
    fn app_id(app_id: impl AsRef<[u8]>) => app_id = Some(app_id.as_ref().to_vec());
}

impl RwLockBuilder {
    /// Builds the locks of the namespace `name` in a store. All users of the same store and name share them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 of the characters `A-Z a-z 0-9 - _ . /`, or if a
    /// setting is out of range.
    pub fn build(self, store: &Store, name: &str) -> Result<RwLock, Error> {
        self.options.check()?;
        if self.settings.most_writers == 0 {
            return Err(Error::invalid("most_writers must be at least 1, is 0"));
        }
        let mut options = self.options;
        if let Some(app_id) = self.app_id {
            if !(1..=64).contains(&app_id.len()) {
                let length = app_id.len();
                return Err(Error::invalid(format!("app_id must be 1 to 64 bytes long, is {length}")));
            }
            options.signature = format!("@{}", percent::encode(&app_id));
        }
        let namespace = Namespace::new(store, name)?;
        let counts = telemetry::Leases::new("rw_lock", name);
        let leases = Leases::shared(store, name, || namespace, options, counts);
        let decisions = Decisions::new("rw_lock", name);
        Ok(RwLock { leases, name: name.into(), decisions, group: "".into(), settings: self.settings })
    }
}
