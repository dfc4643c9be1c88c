//! Bounds how many callers of one key run at once in this process when the result is not shared.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use crate::Key;
use crate::sync::lock;

/// The keys that have callers.
#[derive(Debug)]
pub(super) struct Parallel {
    /// `None`: unlimited.
    most: Option<u32>,
    keys: Mutex<HashMap<Key, Callers>>,
}

/// The callers of a key: those that run and those that wait.
#[derive(Debug)]
struct Callers {
    count: usize,
    permits: Arc<Semaphore>,
}

/// A caller of a key. When the last one is dropped, the key is removed.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    parallel: &'a Parallel,
    key: &'a Key,
    permits: Arc<Semaphore>,
    is_taken: bool,
}

impl Parallel {
    pub(super) fn new(most: Option<u32>) -> Self {
        Self { most, keys: Mutex::default() }
    }

    /// Waits for a permit, in the order of arrival. Cancel safe.
    pub(super) async fn enter<'a>(&'a self, key: &'a Key) -> Option<Slot<'a>> {
        let most = self.most? as usize;
        let permits = {
            let mut keys = lock(&self.keys);
            let new = || Callers { count: 0, permits: Arc::new(Semaphore::new(most)) };
            let callers = keys.entry(key.clone()).or_insert_with(new);
            callers.count += 1;
            Arc::clone(&callers.permits)
        };
        let mut slot = Slot { parallel: self, key, permits, is_taken: false };
        // The semaphore is never closed.
        if let Ok(permit) = slot.permits.acquire().await {
            permit.forget();
        }
        slot.is_taken = true;
        Some(slot)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            self.permits.add_permits(1);
        }
        if let Entry::Occupied(mut callers) = lock(&self.parallel.keys).entry(self.key.clone()) {
            callers.get_mut().count -= 1;
            if callers.get().count == 0 {
                callers.remove();
            }
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
