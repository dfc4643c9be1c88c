//! All of which one at a time can hold a key, in one shape.

use std::ops::Deref;

use tower_distributed::rw_lock::{RwLockReadGuard, RwLockWriteGuard};
use tower_distributed::{Error, Key, Lease, Mutex, MutexGuard, Permit, RwLock, WaitGroup};

/// A primitive of which one at a time holds a key.
#[derive(Clone, Debug)]
pub(crate) enum Family {
    Permits(WaitGroup),
    Mutex(Mutex),
    Writers(RwLock),
}

/// What is held of a family.
#[derive(Debug)]
pub(crate) enum Taken {
    Permit(Permit),
    Mutex(MutexGuard),
    Writer(RwLockWriteGuard),
    Reader(RwLockReadGuard),
}

impl Family {
    pub(crate) async fn take(&self, key: impl Into<Key>) -> Result<Taken, Error> {
        Ok(match self {
            Self::Permits(permits) => Taken::Permit(permits.add(key).await?),
            Self::Mutex(mutex) => Taken::Mutex(mutex.lock(key).await?),
            Self::Writers(lock) => Taken::Writer(lock.write(key).await?),
        })
    }

    pub(crate) async fn try_take(&self, key: impl Into<Key>) -> Result<Taken, Error> {
        Ok(match self {
            Self::Permits(permits) => Taken::Permit(permits.try_add(key).await?),
            Self::Mutex(mutex) => Taken::Mutex(mutex.try_lock(key).await?),
            Self::Writers(lock) => Taken::Writer(lock.try_write(key).await?),
        })
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Permits(permits) => permits.name(),
            Self::Mutex(mutex) => mutex.name(),
            Self::Writers(lock) => lock.name(),
        }
    }
}

impl Taken {
    pub(crate) async fn release(self) -> Result<bool, Error> {
        match self {
            Self::Permit(permit) => permit.done().await,
            Self::Mutex(guard) => guard.unlock().await,
            Self::Writer(guard) => guard.release().await,
            Self::Reader(guard) => guard.release().await,
        }
    }
}

impl Deref for Taken {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Self::Permit(permit) => permit,
            Self::Mutex(guard) => guard,
            Self::Writer(guard) => guard,
            Self::Reader(guard) => guard,
        }
    }
}
