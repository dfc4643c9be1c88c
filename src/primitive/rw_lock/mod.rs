//! The reader-writer locks. See the public module `rw_lock`.

pub(crate) mod holders;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use self::holders::{ReadWrite, reader, writer};
use super::lease::{Ask, Lease, LeaseOptions, Leases, Wait};
use super::percent;
use crate::error::Subject;
use crate::store::{Namespace, check_name};
use crate::telemetry::{self, Decisions};
use crate::{Error, Key, Store};

/// Who goes first where both wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prefer {
    /// Writers, but no more than so many in a row where readers wait.
    #[default]
    Writers,
    /// Readers: writers wait until nobody reads any more.
    Readers,
}

/// A namespace of reader-writer locks, one per key. A cheap clone; see the [module](crate::rw_lock) for the whole story.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time: who waits leaves the queue, and what was granted meanwhile is
/// given back, from a task of its own.
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
    /// The locks of the namespace `name` in a store. Waits as long as it takes; for other settings there is the
    /// [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// As [`RwLockBuilder::build`].
    pub fn new(store: &Store, name: &str) -> Result<Self, Error> {
        Self::builder().build(store, name)
    }

    /// Settings of a namespace.
    pub fn builder() -> RwLockBuilder {
        RwLockBuilder {
            settings: Settings { prefer: Prefer::Writers, most_writers: 16, wait: Wait::FOR_EVER },
            app_id: None,
            options: LeaseOptions::default(),
        }
    }

    /// The same locks for readers of a group; readers of other groups are kept out like writers.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the group is not 1 to 64 of `A-Z a-z 0-9 - _ . /`.
    pub fn with_group(&self, group: &str) -> Result<Self, Error> {
        check_name("a group of readers", group)?;
        Ok(Self { group: group.into(), ..self.clone() })
    }

    /// The same locks, waited for no longer than this.
    #[must_use]
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        let wait = Wait { max_wait: Some(max_wait), ..self.settings.wait };
        Self { settings: Settings { wait, ..self.settings }, ..self.clone() }
    }

    /// Locks for reading; waits its turn.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) where it takes longer than `max_wait`, or too many wait already;
    /// [`is_interrupted`](Error::is_interrupted) after [`close`](Self::close);
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn read(&self, key: impl Into<Key>) -> Result<RwLockReadGuard, Error> {
        self.acquire(key.into(), Access::Read, Some(self.settings.wait)).await.map(RwLockReadGuard)
    }

    /// Locks for reading, if that is possible now and nobody is to go first.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) where it is not; [`is_interrupted`](Error::is_interrupted) after
    /// [`close`](Self::close); [`is_unavailable`](Error::is_unavailable).
    pub async fn try_read(&self, key: impl Into<Key>) -> Result<RwLockReadGuard, Error> {
        self.acquire(key.into(), Access::Read, None).await.map(RwLockReadGuard)
    }

    /// Locks for writing; waits its turn.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub async fn write(&self, key: impl Into<Key>) -> Result<RwLockWriteGuard, Error> {
        self.acquire(key.into(), Access::Write, Some(self.settings.wait)).await.map(RwLockWriteGuard)
    }

    /// Locks for writing, if that is possible now and nobody is to go first.
    ///
    /// # Errors
    ///
    /// As [`try_read`](Self::try_read).
    pub async fn try_write(&self, key: impl Into<Key>) -> Result<RwLockWriteGuard, Error> {
        self.acquire(key.into(), Access::Write, None).await.map(RwLockWriteGuard)
    }

    /// Sends away those who wait through this value or its clones, now or later. Guards stay.
    pub fn close(&self) {
        self.leases.close();
    }

    /// The name of the namespace.
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

    pub(crate) async fn acquire(&self, key: Key, access: Access, wait: Option<Wait>) -> Result<Lease, Error> {
        let Settings { prefer, most_writers, .. } = self.settings;
        let (suffix, rank) = match access {
            Access::Read => (reader(&self.group), i64::from(prefer == Prefer::Writers)),
            Access::Write => (writer(most_writers), i64::from(prefer == Prefer::Readers)),
        };
        let ask = Ask::new(Subject::Lock, suffix, rank, wait);
        let locked = self.leases.acquire(key, ask).await;
        self.decisions.admitted(locked)
    }
}

/// What a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Beside other readers.
    Read,
    /// Alone.
    Write,
}

/// A lock for reading. Released when it is dropped.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub struct RwLockReadGuard(Lease);

/// A lock for writing. Released when it is dropped.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub struct RwLockWriteGuard(Lease);

impl RwLockReadGuard {
    /// The fencing token of the last writer before; `None` where nobody has written for a week.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        Some(self.0.fence()).filter(|fence| *fence > 0)
    }
}

impl RwLockWriteGuard {
    /// The fencing token: greater than that of every writer of this key before. To be checked by what is written to.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.fence()
    }
}

macro_rules! guard {
    ($guard:ident) => {
        impl $guard {
            /// Releases the lock; whether it was still held. See [`Lease::release`].
            ///
            /// # Errors
            ///
            /// [`is_unavailable`](Error::is_unavailable).
            pub async fn release(self) -> Result<bool, Error> {
                self.0.release().await
            }

            /// As [`release`](Self::release), with an error where it was not held to the end.
            ///
            /// # Errors
            ///
            /// [`is_lost`](Error::is_lost) where it was not held any more; [`is_unavailable`](Error::is_unavailable).
            pub async fn release_checked(self) -> Result<(), Error> {
                self.0.release_checked().await
            }
        }

        impl Deref for $guard {
            type Target = Lease;

            fn deref(&self) -> &Lease {
                &self.0
            }
        }
    };
}
guard!(RwLockReadGuard);
guard!(RwLockWriteGuard);

/// Settings of a [`RwLock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RwLockBuilder {
    settings: Settings,
    app_id: Option<Vec<u8>>,
    options: LeaseOptions,
}

impl RwLockBuilder {
    /// After what time the lock of a crashed process is free again, 10 ms to 1 day. Default: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Whether locks are renewed as long as they are held, every third of their time to live. Default: yes.
    pub fn watchdog(mut self, watchdog: bool) -> Self {
        self.options.watchdog = watchdog;
        self
    }

    /// How long to wait for one's turn. Default: as long as it takes.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.settings.wait.max_wait = Some(max_wait);
        self
    }

    /// How many may wait for a key; more are refused at once. Default: any number.
    pub fn max_waiters(mut self, most: u32) -> Self {
        self.settings.wait.max_waiters = most;
        self
    }

    /// Who goes first where both wait. All users of a namespace should agree. Default: [`Prefer::Writers`].
    pub fn prefer(mut self, prefer: Prefer) -> Self {
        self.settings.prefer = prefer;
        self
    }

    /// How many writers in a row may go before readers that wait; at least 1. Default: 16.
    pub fn most_writers(mut self, most: u32) -> Self {
        self.settings.most_writers = most;
        self
    }

    /// What the tokens of this application contain, to tell in Redis who holds: up to 64 bytes, of which those are
    /// percent-encoded that are none of `A-Z a-z 0-9 - _ .`. Default: nothing.
    pub fn app_id(mut self, app_id: impl AsRef<[u8]>) -> Self {
        self.app_id = Some(app_id.as_ref().to_vec());
        self
    }

    /// The locks of the namespace `name` in a store. Whoever uses the same store and name shares them.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the name is not 1 to 64 of `A-Z a-z 0-9 - _ . /`, or a setting is
    /// out of range.
    pub fn build(self, store: &Store, name: &str) -> Result<RwLock, Error> {
        self.options.check()?;
        if self.settings.most_writers == 0 {
            return Err(Error::invalid("writers in a row must be at least 1, got 0"));
        }
        let mut options = self.options;
        if let Some(app_id) = self.app_id {
            if !(1..=64).contains(&app_id.len()) {
                let length = app_id.len();
                return Err(Error::invalid(format!("an app id must have 1 to 64 bytes, has {length}")));
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
