//! Bounds how many do something for one key at once in this process: run when the result is not shared, or publish.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};

use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Key;
use crate::sync::lock;

/// The keys that have callers, by their hashes. Two keys of the same hash wait for each other.
#[derive(Debug)]
pub(super) struct Parallel {
    /// `None`: unlimited.
    most: Option<u32>,
    hasher: RandomState,
    /// Each caller of a key shares its semaphore.
    keys: Mutex<HashMap<u64, Arc<Semaphore>>>,
}

/// A caller of a key. When the last one is dropped, the key is removed.
#[derive(Debug)]
pub(super) struct Slot {
    parallel: Arc<Parallel>,
    key: u64,
    permit: Option<OwnedSemaphorePermit>,
}

impl Parallel {
    pub(super) fn new(most: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            most,
            hasher: RandomState::new(),
            keys: Mutex::default(),
        })
    }

    /// Waits for a permit, in the order of arrival. Cancel safe.
    pub(super) fn enter(
        self: &Arc<Self>,
        key: &Key,
    ) -> impl Future<Output = Option<Slot>> + Send + use<> {
        let entered = self.most.map(|most| {
            let (key, new) = (self.hasher.hash_one(key), || {
                Arc::new(Semaphore::new(most as usize))
            });
            let permits = Arc::clone(lock(&self.keys).entry(key).or_insert_with(new));
            (
                permits,
                Slot {
                    parallel: Arc::clone(self),
                    key,
                    permit: None,
                },
            )
        });
        async move {
            let (permits, mut slot) = entered?;
            // The semaphore is never closed.
            slot.permit = permits.acquire_owned().await.ok();
            Some(slot)
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.permit = None;
        let mut keys = lock(&self.parallel.keys);
        // A caller that waits or runs holds it too.
        if keys
            .get(&self.key)
            .is_some_and(|permits| Arc::strong_count(permits) == 1)
        {
            keys.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn waiters_that_are_dropped_leave_nothing() {
        let parallel = Parallel::new(Some(1));
        let enter = || parallel.enter(&Key::from("k"));
        let keys = || lock(&parallel.keys).len();
        let running = enter().now_or_never().unwrap();
        let mut waiters = [Box::pin(enter()), Box::pin(enter())];
        for waiter in &mut waiters {
            assert!(waiter.now_or_never().is_none(), "two run at once");
        }
        // The first has the permit, and is not polled.
        drop(running);
        assert_eq!(keys(), 1);
        drop(waiters);
        assert_eq!(keys(), 0);
        assert!(enter().now_or_never().is_some());
        assert_eq!(keys(), 0);
    }
}
