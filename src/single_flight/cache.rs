//! The local cache: answers that a process keeps in memory, in front of the store.
//!
//! Also: the count of the bytes of unexpired answers that a process has stored, so that requests with many different
//! keys do not fill the server.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashbrown::HashMap;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::store::notifier::{Link, Listener, Notifier};
use crate::sync::lock;

/// How many bytes an entry counts besides its answer and its key.
const OVERHEAD: u64 = 256;

/// The cached answers of one `SingleFlight`.
pub(super) struct LocalCache<T> {
    namespace: Box<str>,
    answers: Cache<Key, Arc<Cached<T>>, ByBytes>,
    /// How many forget messages were received. An answer is not cached if a message arrived after the query for it was
    /// sent.
    forgotten: AtomicU64,
    notifier: Arc<Notifier>,
}

struct Cached<T> {
    answer: T,
    bytes: u64,
    /// When it expires, by the [clock] that includes suspend.
    until: Instant,
    /// The subscription that would deliver a forget message.
    link: Link,
}

#[derive(Clone)]
struct ByBytes;

/// Returns how many bytes an entry counts: its answer, its key and the overhead.
pub(super) fn weight(bytes: u64, key: &Key) -> u64 {
    bytes + key.as_bytes().len() as u64 + OVERHEAD
}

impl<T> Weighter<Key, Arc<Cached<T>>> for ByBytes {
    fn weight(&self, key: &Key, cached: &Arc<Cached<T>>) -> u64 {
        weight(cached.bytes, key)
    }
}

/// The state of the cache when the query for an answer was sent.
#[derive(Clone, Copy)]
pub(super) struct Epoch {
    forgotten: u64,
    link: Link,
}

impl Epoch {
    /// Returns whether the subscription is down, so that no forget message can arrive.
    pub(super) fn hears_nothing(self) -> bool {
        self.link == Link::Down
    }
}

impl<T: Clone + Send + Sync + 'static> LocalCache<T> {
    /// Creates a cache of `bytes`, for answers of up to `largest` bytes.
    pub(super) fn new(
        name: &str,
        bytes: u64,
        largest: usize,
        notifier: &Arc<Notifier>,
    ) -> Result<Arc<Self>, Error> {
        // The estimate assumes answers of 1 KiB. Each shard has room for four of the largest answers.
        let estimate = usize::try_from(bytes / 1024)
            .unwrap_or(usize::MAX)
            .clamp(16, 1 << 20);
        let shards = bytes / (4 * (largest as u64 + OVERHEAD));
        let options = OptionsBuilder::new()
            .estimated_items_capacity(estimate)
            .weight_capacity(bytes)
            .shards(usize::try_from(shards).unwrap_or(usize::MAX).clamp(1, 16))
            .build()
            .map_err(|error| Error::invalid(format!("local_cache of {bytes} bytes: {error}")))?;
        let cache = Arc::new(Self {
            namespace: name.into(),
            answers: Cache::with_options(
                options,
                ByBytes,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            forgotten: AtomicU64::new(0),
            notifier: Arc::clone(notifier),
        });
        notifier.listen(&cache);
        Ok(cache)
    }

    /// Returns an answer that is fresh, as far as this process knows.
    pub(super) fn get(&self, key: &Key) -> Option<T> {
        let cached = self.answers.get(key)?;
        let link = self.notifier.current_link();
        (link == cached.link && clock::now() < cached.until).then(|| cached.answer.clone())
    }

    /// Returns the current state. Call it before the query is sent.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch {
            forgotten: self.forgotten.load(Ordering::Acquire),
            link: self.notifier.current_link(),
        }
    }

    /// Caches an answer until it expires, by the [clock] that includes suspend, unless a forget message arrived after
    /// `epoch`.
    pub(super) fn insert(&self, key: Key, answer: &T, bytes: usize, until: Instant, epoch: Epoch) {
        let Epoch { forgotten, link } = epoch;
        if epoch.hears_nothing() || until <= clock::now() {
            return;
        }
        let cached = Cached {
            answer: answer.clone(),
            bytes: bytes as u64,
            until,
            link,
        };
        self.answers.insert(key.clone(), Arc::new(cached));
        // Checked after the insertion: `hear` first increments the counter and then removes the answer.
        if self.forgotten.load(Ordering::SeqCst) != forgotten {
            self.answers.remove(&key);
        }
    }
}

/// Returns the forget message for a key, for all processes.
pub(super) fn message(namespace: &str, key: &Key) -> Arc<[u8]> {
    [b"forget\n", namespace.as_bytes(), b"\n", key.as_bytes()]
        .concat()
        .into()
}

/// Returns the key in a forget message, if the message is for this namespace.
pub(super) fn forgotten(message: &[u8], namespace: &str) -> Option<Key> {
    let mut parts = message.splitn(3, |byte| *byte == b'\n');
    let is_ours = parts.next() == Some(b"forget") && parts.next() == Some(namespace.as_bytes());
    parts.next().filter(|_| is_ours).map(Key::from)
}

impl<T: Clone + Send + Sync + 'static> Listener for LocalCache<T> {
    fn hear(&self, message: &[u8]) {
        if let Some(key) = forgotten(message, &self.namespace) {
            self.forgotten.fetch_add(1, Ordering::SeqCst);
            self.answers.remove(&key);
        }
    }
}

/// The answers of one `SingleFlight` that this process has stored.
#[derive(Debug)]
pub(super) struct Stored {
    most: u64,
    hasher: hashbrown::DefaultHashBuilder,
    answers: Mutex<Answers>,
}

/// Keys are identified by their hashes. If two keys have the same hash, the count is too low.
#[derive(Debug, Default)]
struct Answers {
    bytes: u64,
    /// When the answer to a key expires, and how many bytes it counts.
    by_key: HashMap<u64, (Instant, u64)>,
    /// Ends that were added in order, as all are if all answers are stored for the same time.
    in_order: VecDeque<(Instant, u64)>,
    /// The other ends.
    ends: BinaryHeap<Reverse<(Instant, u64)>>,
}

impl Stored {
    /// Creates a counter with a bound of `most` bytes.
    pub(super) fn new(most: u64) -> Self {
        Self {
            most,
            hasher: hashbrown::DefaultHashBuilder::default(),
            answers: Mutex::default(),
        }
    }

    /// Counts the answer to a key until it expires, in place of the key's previous answer. Returns `false` and
    /// counts nothing if the bound would be exceeded.
    pub(super) fn take(&self, key: &Key, bytes: u64, kept: Duration) -> bool {
        if self.most == u64::MAX {
            return true;
        }
        let now = Instant::now();
        let key = self.hasher.hash_one(key);
        let mut answers = lock(&self.answers);
        answers.forget_ended(now);
        let before = answers.by_key.get(&key).map_or(0, |(_, bytes)| *bytes);
        let sum = (answers.bytes - before).saturating_add(bytes);
        let Some(until) = now.checked_add(kept).filter(|_| sum <= self.most) else {
            return false;
        };
        answers.bytes = sum;
        answers.by_key.insert(key, (until, bytes));
        if answers
            .in_order
            .back()
            .is_none_or(|(last, _)| *last <= until)
        {
            answers.in_order.push_back((until, key));
        } else {
            answers.ends.push(Reverse((until, key)));
        }
        true
    }

    /// Stops counting the answer to a key, because it was not stored.
    pub(super) fn give_back(&self, key: &Key) {
        let key = self.hasher.hash_one(key);
        let mut answers = lock(&self.answers);
        if let Some((_, bytes)) = answers.by_key.remove(&key) {
            answers.bytes -= bytes;
        }
    }
}

impl Answers {
    /// Removes the earliest end that is not after `now`.
    fn next_end(&mut self, now: Instant) -> Option<(Instant, u64)> {
        let is_over = |(until, _): &(Instant, u64)| *until <= now;
        let other = self.ends.peek().map(|Reverse(end)| *end).filter(is_over);
        match self.in_order.front().copied().filter(is_over) {
            Some(end) if other.is_none_or(|other| end <= other) => self.in_order.pop_front(),
            _ => other.and_then(|_| self.ends.pop()).map(|Reverse(end)| end),
        }
    }

    fn forget_ended(&mut self, now: Instant) {
        while let Some((until, key)) = self.next_end(now) {
            // If the answer was replaced, its entry in `by_key` has a different end.
            if let Some((end, bytes)) = self.by_key.get(&key).copied()
                && end == until
            {
                self.bytes -= bytes;
                self.by_key.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_is_over_makes_room() {
        let stored = Stored::new(100);
        let take = |key: &str, bytes, kept| stored.take(&key.into(), bytes, kept);
        assert!(take("a", 60, 2 * SECOND) && take("b", 40, SECOND));
        assert!(!take("c", 1, SECOND), "it is full");
        tokio::time::advance(SECOND).await;
        assert!(
            !take("c", 41, SECOND) && take("c", 40, SECOND),
            "what was refused takes no room"
        );
        tokio::time::advance(SECOND).await;
        assert!(take("d", 100, SECOND) && !take("e", u64::MAX, SECOND));
        stored.give_back(&"d".into());
        assert!(take("e", 100, SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_takes_the_place_of_the_one_before() {
        let stored = Stored::new(100);
        for _ in 0..50 {
            assert!(stored.take(&"a".into(), 60, 100 * SECOND));
            tokio::time::advance(SECOND).await;
        }
        tokio::time::advance(60 * SECOND).await;
        assert!(
            !stored.take(&"b".into(), 60, SECOND),
            "it ends with the last of them"
        );
        tokio::time::advance(40 * SECOND).await;
        assert!(stored.take(&"b".into(), 60, SECOND));
    }
}
