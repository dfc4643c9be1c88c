//! All that one at a time can hold, in one shape.

use std::ops::Deref;

use tower_distributed::rw_lock::RwLockWriteGuard;
use tower_distributed::{Error, Key, Lease, Mutex, MutexGuard, Permit, RwLock, WaitGroup};

use crate::stores::SOON;
use support::eventually;

/// Something of which one at a time holds a key.
#[derive(Clone, Debug)]
pub(crate) enum Family {
    Permits(WaitGroup),
    Mutex(Mutex),
    Writers(RwLock),
}

/// What is held of it.
#[derive(Debug)]
pub(crate) enum Taken {
    Permit(Permit),
    Mutex(MutexGuard),
    Writer(RwLockWriteGuard),
}

/// One of each kind, with these settings.
macro_rules! each {
    ($place:expr, $name:expr $(, $setting:ident($value:expr))*) => {{
        let name = |kind: &str| format!("{}.{kind}", $name);
        [
            $crate::kinds::Family::Permits(tower_distributed::WaitGroup::builder(1)$(.$setting($value))*.build($place, &name("permits")).unwrap()),
            $crate::kinds::Family::Mutex(tower_distributed::Mutex::builder()$(.$setting($value))*.build($place, &name("mutex")).unwrap()),
            $crate::kinds::Family::Writers(tower_distributed::RwLock::builder()$(.$setting($value))*.build($place, &name("writers")).unwrap()),
        ]
    }};
}
pub(crate) use each;

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

    /// How many places in the queue so many waiters have where their own process holds: none for a mutex, which it hands on
    /// by itself unless they are counted.
    pub(crate) fn places(&self, waiters: usize) -> usize {
        if let Self::Mutex(_) = self { 0 } else { waiters }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Permits(permits) => permits.close(),
            Self::Mutex(mutex) => mutex.close(),
            Self::Writers(lock) => lock.close(),
        }
    }

    /// The state of the key `k`.
    pub(crate) fn state(&self) -> String {
        let name = match self {
            Self::Permits(permits) => permits.name(),
            Self::Mutex(mutex) => mutex.name(),
            Self::Writers(lock) => lock.name(),
        };
        format!("{name}:k")
    }

    /// Waits until nobody holds `k`.
    pub(crate) async fn free(&self) {
        eventually(&format!("{} to be free", self.state()), SOON, async || match self.try_take("k").await {
            Ok(taken) => taken.release().await.unwrap(),
            Err(error) => {
                assert!(error.is_refused(), "{error}");
                false
            }
        })
        .await;
    }
}

impl Taken {
    pub(crate) async fn release(self) -> Result<bool, Error> {
        match self {
            Self::Permit(permit) => permit.done().await,
            Self::Mutex(guard) => guard.unlock().await,
            Self::Writer(guard) => guard.release().await,
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
        }
    }
}
