//! Tokens that are being given back, by key. The next request of this process for the same key waits until they are
//! back, so that the charge does not refuse it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::Key;
use crate::store::timer::within;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, lock};

/// The longest wait. The task that gives tokens back may be in a runtime that does not run.
const LONGEST: Duration = Duration::from_secs(1);

/// The keys of one namespace. Cloning is cheap.
#[derive(Clone, Default)]
pub(super) struct Returning(Arc<Keys>);

#[derive(Default)]
struct Keys {
    /// The number of operations in progress, usually zero.
    count: AtomicUsize,
    under_way: Mutex<HashMap<Key, UnderWay>>,
}

/// The operations in progress for one key.
struct UnderWay {
    count: usize,
    over: watch::Sender<()>,
}

/// An operation in progress, until this is dropped.
pub(super) struct Return {
    keys: Arc<Keys>,
    key: Key,
}

impl Returning {
    pub(super) fn begin(&self, key: &Key) -> Return {
        let mut under_way = lock(&self.0.under_way);
        let new = || UnderWay {
            count: 0,
            over: watch::Sender::new(()),
        };
        under_way.entry(key.clone()).or_insert_with(new).count += 1;
        self.0.count.fetch_add(1, Ordering::Release);
        Return {
            keys: Arc::clone(&self.0),
            key: key.clone(),
        }
    }

    /// Waits for the operations in progress for a key; `None` if there are none.
    pub(super) fn end(&self, key: &Key) -> Option<impl Future<Output = ()> + Send + use<>> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut over = lock(&self.0.under_way).get(key)?.over.subscribe();
        // Nothing is ever sent. The wait ends when the sender is dropped.
        Some(async move {
            within(LONGEST, over.changed()).await;
        })
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        let mut under_way = lock(&self.keys.under_way);
        if let Some(entry) = under_way.get_mut(&self.key) {
            entry.count -= 1;
            if entry.count == 0 {
                under_way.remove(&self.key);
            }
        }
        self.keys.count.fetch_sub(1, Ordering::Release);
    }
}

debug!(Returning);

debug!(Return);

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_asks_next_asks_after_all_that_is_under_way() {
        let (returning, key) = (Returning::default(), Key::from("k"));
        assert!(returning.end(&key).is_none());
        let (one, other) = (returning.begin(&key), returning.begin(&key));
        assert!(returning.end(&"l".into()).is_none());
        let mut end = Box::pin(returning.end(&key).unwrap());
        drop(one);
        assert!(poll!(&mut end).is_pending());
        drop(other);
        assert!(poll!(&mut end).is_ready());
        assert!(returning.end(&key).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let (returning, key) = (Returning::default(), Key::from("k"));
        let _stands_still = returning.begin(&key);
        let began = tokio::time::Instant::now();
        returning.end(&key).unwrap().await;
        assert!((LONGEST..2 * LONGEST).contains(&began.elapsed()));
    }
}
