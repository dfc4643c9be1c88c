//! Bounds how many callers of one key run at once in this process when the result is not shared.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use crate::Key;
use crate::store::lock;

/// A semaphore for each key that has callers.
#[derive(Debug)]
pub(super) struct Parallel {
    /// `None`: unlimited.
    most: Option<NonZeroU32>,
    keys: Mutex<HashMap<Key, Arc<Semaphore>>>,
}

/// The permit of a run.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    parallel: &'a Parallel,
    key: &'a Key,
    /// `Some` until the slot is dropped.
    semaphore: Option<Arc<Semaphore>>,
    is_taken: bool,
}

impl Parallel {
    pub(super) fn new(most: Option<NonZeroU32>) -> Self {
        Self { most, keys: Mutex::default() }
    }

    /// Waits for a permit, in the order of arrival. Cancel safe.
    pub(super) async fn enter<'a>(&'a self, key: &'a Key) -> Option<Slot<'a>> {
        let most = self.most?.get() as usize;
        let semaphore = match lock(&self.keys).entry(key.clone()) {
            Entry::Occupied(entry) => Arc::clone(entry.get()),
            Entry::Vacant(entry) => Arc::clone(entry.insert(Arc::new(Semaphore::new(most)))),
        };
        let mut slot = Slot { parallel: self, key, semaphore: Some(Arc::clone(&semaphore)), is_taken: false };
        // The semaphore is never closed.
        if let Ok(permit) = semaphore.acquire().await {
            permit.forget();
        }
        slot.is_taken = true;
        Some(slot)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut keys = lock(&self.parallel.keys);
        if let Some(semaphore) = self.semaphore.take()
            && self.is_taken
        {
            semaphore.add_permits(1);
        }
        // The map has the last reference: no other slot of the key exists.
        if keys.get(self.key).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
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
        let (parallel, key) = (Parallel::new(NonZeroU32::new(1)), Key::from("k"));
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
