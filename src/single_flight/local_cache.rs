//! The local cache: answers that a process keeps in memory, in front of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use tokio::time::Instant;

use crate::store::{Link, Listener, Notifier};
use crate::{Error, Key, clock};

/// How many bytes an entry counts besides its answer and its key.
const OVERHEAD: u64 = 256;

/// The cached answers of one `SingleFlight`.
pub(super) struct LocalCache<T> {
    namespace: Box<str>,
    answers: Cache<Key, Arc<Cached<T>>, ByBytes>,
    /// How many forget messages were received. An answer is not cached if a message came after its request was
    /// sent.
    forgotten: AtomicU64,
    notifier: Arc<Notifier>,
}

struct Cached<T> {
    answer: T,
    bytes: u64,
    /// When it expires, by the [clock] that includes suspend.
    until: Instant,
    /// The subscription that would report that the answer was forgotten.
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

/// The state of the cache when an answer was requested.
#[derive(Clone, Copy)]
pub(super) struct Epoch {
    forgotten: u64,
    link: Link,
}

impl Epoch {
    /// Returns whether the subscription is down, so that no forget message arrives.
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

    /// Returns an answer that is fresh as far as this process knows.
    pub(super) fn get(&self, key: &Key) -> Option<T> {
        let cached = self.answers.get(key)?;
        let link = self.notifier.current_link();
        (link == cached.link && clock::now() < cached.until).then(|| cached.answer.clone())
    }

    /// Returns the current state. Call it before the answer is requested.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch {
            forgotten: self.forgotten.load(Ordering::Acquire),
            link: self.notifier.current_link(),
        }
    }

    /// Caches an answer until it expires, by the [clock] that includes suspend, unless a forget message came since
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

/// Returns the message that tells all processes to forget a key.
pub(super) fn message(namespace: &str, key: &Key) -> Arc<[u8]> {
    [b"forget\n", namespace.as_bytes(), b"\n", key.as_bytes()]
        .concat()
        .into()
}

/// Returns the key that a message tells to forget, if the message is for this namespace.
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
