//! Answers that a process keeps for itself, in front of the store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use tokio::time::Instant;

use crate::store::{Link, Listener, Notifier};
use crate::{Error, Key};

/// How many bytes an answer is taken for, besides its own and its key.
const OVERHEAD: u64 = 256;

/// The answers of one flight.
pub(super) struct LocalCache<T> {
    namespace: Box<str>,
    answers: Cache<Key, Arc<Cached<T>>, ByBytes>,
    /// How often anything was forgotten: an answer that was asked for before is not kept after that.
    forgotten: AtomicU64,
    notifier: Arc<Notifier>,
}

struct Cached<T> {
    answer: T,
    bytes: u64,
    until: Instant,
    /// By which subscription it would be heard that it was forgotten.
    link: Link,
}

#[derive(Clone)]
struct ByBytes;

/// What an answer of so many bytes is taken for, with its key.
pub(super) fn weight(bytes: u64, key: &Key) -> u64 {
    bytes + key.as_bytes().len() as u64 + OVERHEAD
}

impl<T> Weighter<Key, Arc<Cached<T>>> for ByBytes {
    fn weight(&self, key: &Key, cached: &Arc<Cached<T>>) -> u64 {
        weight(cached.bytes, key)
    }
}

/// What was known when an answer was asked for.
#[derive(Clone, Copy)]
pub(super) struct Epoch {
    forgotten: u64,
    link: Link,
}

impl Epoch {
    /// Whether nothing would be heard of what is forgotten.
    pub(super) fn hears_nothing(self) -> bool {
        self.link == Link::Down
    }
}

impl<T: Clone + Send + Sync + 'static> LocalCache<T> {
    /// Of so many bytes, for answers of up to `largest`.
    pub(super) fn new(
        name: &str,
        bytes: u64,
        largest: usize,
        notifier: &Arc<Notifier>,
    ) -> Result<Arc<Self>, Error> {
        // As many as there would be of 1 KiB; and each part has room for several of the largest.
        let estimate = usize::try_from(bytes / 1024).unwrap_or(usize::MAX).clamp(16, 1 << 20);
        let shards = bytes / (4 * (largest as u64 + OVERHEAD));
        let options = OptionsBuilder::new()
            .estimated_items_capacity(estimate)
            .weight_capacity(bytes)
            .shards(usize::try_from(shards).unwrap_or(usize::MAX).clamp(1, 16))
            .build()
            .map_err(|error| Error::invalid(format!("a local cache of {bytes} bytes: {error}")))?;
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
        let listener: std::sync::Weak<dyn Listener> = Arc::<Self>::downgrade(&cache);
        notifier.listen(listener);
        Ok(cache)
    }

    /// An answer that is fresh, as far as this process can know.
    pub(super) fn get(&self, key: &Key) -> Option<T> {
        let cached = self.answers.get(key)?;
        let link = self.notifier.current_link();
        (link == cached.link && Instant::now() < cached.until).then(|| cached.answer.clone())
    }

    /// To be looked at before an answer is asked for.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch { forgotten: self.forgotten.load(Ordering::Acquire), link: self.notifier.current_link() }
    }

    /// Keeps an answer that is fresh for so long, unless something was forgotten since.
    pub(super) fn insert(&self, key: Key, answer: &T, bytes: usize, fresh: Duration, epoch: Epoch) {
        let Epoch { forgotten, link } = epoch;
        if epoch.hears_nothing() || fresh.is_zero() {
            return;
        }
        let Some(until) = Instant::now().checked_add(fresh) else { return };
        let cached = Cached { answer: answer.clone(), bytes: bytes as u64, until, link };
        self.answers.insert(key.clone(), Arc::new(cached));
        // Looked at after it is there: who forgets counts first and takes it out then.
        if self.forgotten.load(Ordering::SeqCst) != forgotten {
            self.answers.remove(&key);
        }
    }
}

/// What processes tell each other of a key that is forgotten.
pub(super) fn message(namespace: &str, key: &Key) -> Arc<[u8]> {
    [b"forget\n", namespace.as_bytes(), b"\n", key.as_bytes()].concat().into()
}

/// Which key of a namespace is forgotten, by what was told.
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

impl<T> fmt::Debug for LocalCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCache").finish_non_exhaustive()
    }
}
