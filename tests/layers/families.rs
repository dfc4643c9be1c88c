//! The layers, and who else holds what they ask for.

use tower_distributed::rw_lock::RwLockWriteGuard;
use tower_distributed::{Mutex, MutexGuard, Permit, RwLock, Store, WaitGroup};

use crate::stores::{SOON, Stores};
use support::eventually;

/// The family behind the concurrency limit.
pub(crate) fn permits(store: &Store, limit: u32) -> WaitGroup {
    WaitGroup::new(store, "permits", limit).unwrap()
}

/// The family behind the locks.
pub(crate) fn locks(store: &Store) -> RwLock {
    RwLock::new(store, "locks").unwrap()
}

/// The family behind the mutexes.
pub(crate) fn mutexes(store: &Store) -> Mutex {
    Mutex::new(store, "mutexes").unwrap()
}

/// Runs a block with each of the layers by a key; each admits one request of a key at a time.
macro_rules! on_each_layer {
    ($stores:expr, $key:expr, |$layer:ident| $block:block) => {{
        {
            let permits = $crate::families::permits(&$stores.open(), 1);
            let $layer = tower_distributed::ConcurrencyLimitLayer::new(permits, $key);
            $block
        }
        {
            let $layer =
                tower_distributed::RwLockLayer::new($crate::families::locks(&$stores.open()), $key);
            $block
        }
        {
            let $layer = tower_distributed::MutexLayer::new(
                $crate::families::mutexes(&$stores.open()),
                $key,
            );
            $block
        }
    }};
}
pub(crate) use on_each_layer;

pub(crate) fn by_name(name: &&'static str) -> &'static str {
    name
}

/// Somebody else, who holds a key of all families.
#[derive(Debug)]
pub(crate) struct Other(Permit, RwLockWriteGuard, MutexGuard);

impl Other {
    pub(crate) async fn holds(stores: &Stores, key: &'static str) -> Self {
        let store = stores.open();
        let (permit, lock) = (
            permits(&store, 1).add(key).await.unwrap(),
            locks(&store).write(key).await.unwrap(),
        );
        Self(permit, lock, mutexes(&store).lock(key).await.unwrap())
    }

    pub(crate) async fn leaves(self) {
        let Self(permit, lock, mutex) = self;
        assert!(
            permit.done().await.unwrap()
                && lock.release().await.unwrap()
                && mutex.unlock().await.unwrap()
        );
    }
}

/// Whether a key is neither held nor waited for, in any family.
pub(crate) async fn is_free(stores: &Stores, key: &'static str) -> bool {
    let store = stores.open();
    let permit = match permits(&store, 1).try_add(key).await {
        Ok(permit) => permit.done().await.unwrap(),
        Err(error) => !error.is_refused(),
    };
    let mutex = match mutexes(&store).try_lock(key).await {
        Ok(guard) => guard.unlock().await.unwrap(),
        Err(error) => !error.is_refused(),
    };
    permit
        && mutex
        && match locks(&store).try_write(key).await {
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => !error.is_refused(),
        }
}

pub(crate) async fn becomes_free(stores: &Stores, key: &'static str) {
    eventually(&format!("{key} to be free"), SOON, async || {
        is_free(stores, key).await
    })
    .await;
}
