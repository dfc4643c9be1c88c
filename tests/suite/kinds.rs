//! All that one at a time can hold, in one shape.

use tower_distributed::{Error, Key, Lease, Mutex, RwLock, WaitGroup};

use crate::stores::SOON;
use support::eventually;

/// A primitive of which one at a time holds a key.
#[derive(Clone, Debug)]
pub(crate) enum Family {
    Permits(WaitGroup),
    Mutex(Mutex),
    Writers(RwLock),
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
    pub(crate) async fn take(&self, key: impl Into<Key>) -> Result<Lease, Error> {
        match self {
            Self::Permits(permits) => permits.add(key).await.map(Lease::from),
            Self::Mutex(mutex) => mutex.lock(key).await.map(Lease::from),
            Self::Writers(lock) => lock.write(key).await.map(Lease::from),
        }
    }

    pub(crate) async fn try_take(&self, key: impl Into<Key>) -> Result<Lease, Error> {
        match self {
            Self::Permits(permits) => permits.try_add(key).await.map(Lease::from),
            Self::Mutex(mutex) => mutex.try_lock(key).await.map(Lease::from),
            Self::Writers(lock) => lock.try_write(key).await.map(Lease::from),
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Permits(permits) => permits.name(),
            Self::Mutex(mutex) => mutex.name(),
            Self::Writers(lock) => lock.name(),
        }
    }

    /// How many places in the queue so many waiters have where their own process holds: none for a mutex, which it hands on
    /// by itself unless they are counted.
    pub(crate) fn places(&self, waiters: usize) -> usize {
        if let Self::Mutex(_) = self {
            0
        } else {
            waiters
        }
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
        format!("{}:k", self.name())
    }

    /// Waits until nobody holds `k`.
    pub(crate) async fn free(&self) {
        eventually(
            &format!("{} to be free", self.state()),
            SOON,
            async || match self.try_take("k").await {
                Ok(taken) => taken.release().await.unwrap(),
                Err(error) => {
                    assert!(error.is_refused(), "{error}");
                    false
                }
            },
        )
        .await;
    }
}
