//! Bounds how many do something for one key at once in this process: run when the result is not shared, or publish.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Key;
use crate::sync::lock;

/// The keys that have callers.
#[derive(Debug)]
pub(super) struct Parallel {
    /// `None`: unlimited.
    most: Option<u32>,
    /// Each caller of a key shares its semaphore.
    keys: Mutex<HashMap<Key, Arc<Semaphore>>>,
}

/// A caller of a key. When the last one is dropped, the key is removed.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    parallel: &'a Parallel,
    key: &'a Key,
    permit: Option<OwnedSemaphorePermit>,
}

impl Parallel {
    pub(super) fn new(most: Option<u32>) -> Self {
        Self { most, keys: Mutex::default() }
    }

    /// Waits for a permit, in the order of arrival. Cancel safe.
    pub(super) async fn enter<'a>(&'a self, key: &'a Key) -> Option<Slot<'a>> {
        let most = self.most? as usize;
        let new = || Arc::new(Semaphore::new(most));
        let permits = Arc::clone(lock(&self.keys).entry(key.clone()).or_insert_with(new));
        let mut slot = Slot { parallel: self, key, permit: None };
        // The semaphore is never closed.
        slot.permit = permits.acquire_owned().await.ok();
        Some(slot)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.permit = None;
        let mut keys = lock(&self.parallel.keys);
        // A caller that waits or runs holds it too.
        if keys.get(self.key).is_some_and(|permits| Arc::strong_count(permits) == 1) {
            keys.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn waiters_that_are_dropped_leave_nothing() {
        let (parallel, key) = (Parallel::new(Some(1)), Key::from("k"));
        let keys = || lock(&parallel.keys).len();
        let running = parallel.enter(&key).now_or_never().unwrap();
        let mut waiters = [Box::pin(parallel.enter(&key)), Box::pin(parallel.enter(&key))];
        for waiter in &mut waiters {
            assert!(waiter.now_or_never().is_none(), "two run at once");
        }
        // The first has the permit, and is not polled.
        drop(running);
        assert_eq!(keys(), 1);
        drop(waiters);
        assert_eq!(keys(), 0);
        assert!(parallel.enter(&key).now_or_never().is_some());
        assert_eq!(keys(), 0);
    }
}
