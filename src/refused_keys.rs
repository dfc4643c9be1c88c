//! Counts of the keys that are refused most: [`RefusedKeys`].

pub(crate) mod list;
pub(crate) mod operations;
mod sketch;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::key::{Key, digest_text, text_of};
use crate::refused_keys::list::{List, STORED};
use crate::refused_keys::operations::Put;
use crate::refused_keys::sketch::Sketch;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::redis::names::{LONGEST, Stem};
use crate::store::scheduler::{PeriodicTask, Signal};
use crate::sync::lock;

/// The length of a window, in µs. The counts are those of this window and of the previous one, so a refusal counts for
/// at least this long.
const WINDOW: i64 = 600_000_000;

/// How long after a refusal the list is stored.
const EVERY: Duration = Duration::from_secs(5);

/// A key and how often it was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedKey {
    /// `%#` and the SHA-256 digest of the key, as `printf ann | sha256sum` prints it; with
    /// [plain keys](RefusedKeys::with_plain_keys) the key, as in [`Entry::key_text`](crate::operator::Entry::key_text).
    pub key: String,
    /// The number of refusals is at least this.
    pub at_least: u64,
    /// The number of refusals is at most this.
    pub at_most: u64,
}

/// Counts the keys that are refused most, in this process and over the fleet.
///
/// It is off until it is passed to a layer by [`count_refused`](crate::RateLimitLayer::count_refused), or
/// [`record`](Self::record) is called. Only refused requests take longer: they need a lock, a clock reading and a
/// lookup, about 0.2 µs.
///
/// ```
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_distributed::fleet::RefusedKeys;
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let store = Store::in_memory();
/// let refused = RefusedKeys::with_plain_keys(&store, "mail")?;
/// let bucket = TokenBucket::new(&store, "mail", Quota::per_hour(1))?;
/// let limit = RateLimitLayer::new(bucket, |user: &&'static str| *user).count_refused(&refused);
/// let mut send = limit.layer(service_fn(async |_: &'static str| Ok::<_, std::io::Error>("sent")));
///
/// for user in ["ann", "ben", "ann", "ann", "ben", "cid"] {
///     drop(send.ready().await?.call(user).await);
/// }
/// let top = refused.top(2);
/// let counts: Vec<_> = top.iter().map(|refused| (refused.key.as_str(), refused.at_least, refused.at_most)).collect();
/// assert_eq!(counts, [("ann", 2, 2), ("ben", 1, 1)]);
/// # Ok(()) }
/// ```
///
/// # What is counted
///
/// The refusals of the last 10 to 20 minutes, in 256 counters (Space-Saving, Metwally et al. 2005). The memory is
/// bounded for any number of keys: about 100 KB, if no key has more than 24 bytes. If no more than 256 keys are
/// refused, all numbers are exact. Otherwise each number has bounds, which differ by at most the number of all refusals
/// divided by 256, and every key with more refusals than that is found.
///
/// All handles of a store and a name share their counts. In [shadow mode](crate::RateLimitLayer::shadow), requests that
/// would have been refused are counted. In an outage, refusals by the local share are counted too.
///
/// # Over the fleet
///
/// Each process stores its first 32 keys under the name in the store, at most every 5 s and only after refusals. They
/// are kept for 10 minutes. [`Operator::top_refused`](crate::operator::Operator::top_refused) adds up the lists of all
/// processes; so does the example `inspect` with `--top`.
///
/// # Personal data
///
/// Keys are often personal data, such as addresses. So only digests of them are shown and stored, unless the counter is
/// created by [`with_plain_keys`](Self::with_plain_keys). A digest is not secret: anyone who can guess a key can
/// compute its digest.
#[derive(Clone)]
pub struct RefusedKeys {
    shared: Arc<Shared>,
    is_plain: bool,
}

/// The state that all handles of a name share.
struct Shared {
    store: Store,
    client: Client<Put>,
    windows: Mutex<Windows>,
    /// Whether a handle was created that shows only digests.
    is_hashed: AtomicBool,
    /// Whether refusals were counted since the list was stored.
    has_changed: AtomicBool,
    /// When the list is stored next.
    due: Mutex<Option<Instant>>,
}

/// The counts of this window and of the previous one.
#[derive(Debug, Default)]
struct Windows {
    this: Sketch,
    before: Sketch,
    /// When this window began, µs.
    began: i64,
}

impl Windows {
    /// Begins a new window if this one is over.
    fn roll(&mut self, now: i64) {
        let age = now.saturating_sub(self.began);
        if age < WINDOW {
            return;
        }
        self.before = std::mem::take(&mut self.this);
        if age >= 2 * WINDOW {
            self.before = Sketch::default();
        }
        self.began = now;
    }
}

impl RefusedKeys {
    /// Creates a counter of refused keys that shows and stores only digests. The name is usually that of the limit.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 characters of `A-Z a-z 0-9 - _ . /`.
    pub fn new(store: &Store, name: &str) -> Result<Self, Error> {
        Self::open(store, name, false)
    }

    /// Creates a counter of refused keys that shows and stores the keys themselves. They are stored as digests if this
    /// process also has a handle of the same name by [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// The same as [`new`](Self::new).
    pub fn with_plain_keys(store: &Store, name: &str) -> Result<Self, Error> {
        Self::open(store, name, true)
    }

    fn open(store: &Store, name: &str, is_plain: bool) -> Result<Self, Error> {
        let namespace = Namespace::new(store, name)?;
        let shared = store.shared(name, || {
            let shared = Arc::new(Shared {
                store: store.clone(),
                client: namespace.client(),
                windows: Mutex::default(),
                is_hashed: AtomicBool::new(false),
                has_changed: AtomicBool::new(false),
                due: Mutex::default(),
            });
            store.scheduler().join(&shared);
            shared
        });
        shared.is_hashed.fetch_or(!is_plain, Ordering::Relaxed);
        Ok(Self { shared, is_plain })
    }

    /// Counts a refusal of a key, for limiters whose layer has no `count_refused`.
    ///
    /// ```
    /// use tower_distributed::fleet::RefusedKeys;
    /// use tower_distributed::{Store, WaitGroup};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::in_memory();
    /// let (exports, refused) = (WaitGroup::new(&store, "exports", 1)?, RefusedKeys::new(&store, "exports")?);
    /// let permit = exports.try_add("acme").await?;
    /// if exports.try_add("acme").await.is_err_and(|error| error.is_refused()) {
    ///     refused.record("acme");
    /// }
    /// assert_eq!(refused.top(1)[0].at_least, 1);
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    pub fn record(&self, key: impl Into<Key>) {
        self.shared.record(key.into(), clock::micros());
    }

    /// Returns the `n` keys that this process has refused most, sorted by the lower bounds of their counts. It makes no
    /// call to the store.
    #[must_use]
    pub fn top(&self, n: usize) -> Vec<RefusedKey> {
        self.shared
            .list(self.is_plain, clock::micros())
            .top(n)
            .into()
    }
}

impl Shared {
    fn record(self: &Arc<Self>, key: Key, now: i64) {
        let stem = match key.as_bytes() {
            long if long.len() > LONGEST => Stem::Digest(Key::from(&digest_text(long)[2..])),
            _ => Stem::Key(key),
        };
        {
            let mut windows = lock(&self.windows);
            windows.roll(now);
            windows.this.add(stem);
        }
        if !self.has_changed.load(Ordering::Relaxed)
            && !self.has_changed.swap(true, Ordering::Relaxed)
        {
            self.schedule();
        }
    }

    fn schedule(self: &Arc<Self>) {
        let due = Instant::now() + EVERY;
        *lock(&self.due) = Some(due);
        self.store.scheduler().schedule(due);
    }

    fn list(&self, is_plain: bool, now: i64) -> List {
        let text = |stem: &Stem| match stem {
            Stem::Digest(digest) => format!("%#{}", text_of(digest.as_bytes())),
            Stem::Key(key) if is_plain => text_of(key.as_bytes()),
            Stem::Key(key) => digest_text(key.as_bytes()),
        };
        // Other requests that are refused at the same time do not wait for the digests.
        let (this, before) = {
            let mut windows = lock(&self.windows);
            windows.roll(now);
            (windows.this.clone(), windows.before.clone())
        };
        List::combined([this.list(text), before.list(text)])
    }

    /// `is_last`: the process ends, and waits for this.
    fn store_list(self: &Arc<Self>, now: i64, is_last: bool) {
        if lock(&self.due).take().is_none() {
            return;
        }
        // Must happen before the counts are read: later refusals are stored next time.
        self.has_changed.store(false, Ordering::Relaxed);
        let list = self
            .list(!self.is_hashed.load(Ordering::Relaxed), now)
            .top(STORED);
        let put = Put::new(&list, WINDOW / 1000);
        let (this, process) = (
            Arc::downgrade(self),
            Key::from(self.store.notifier().process()),
        );
        if is_last {
            return self.client.detach(process, put);
        }
        self.client.send(None, process, put, move |stored| {
            if let Some(this) = this
                .upgrade()
                .filter(|_| stored.is_err_and(|error| error.is_away()))
                && !this.has_changed.swap(true, Ordering::Relaxed)
            {
                this.schedule();
            }
        });
    }
}

impl PeriodicTask for Shared {
    fn due(&self) -> Option<Instant> {
        *lock(&self.due)
    }

    fn signal(self: Arc<Self>, signal: Signal) {
        match signal {
            Signal::Due => self.store_list(clock::micros(), false),
            Signal::Hurry => self.store_list(clock::micros(), true),
            Signal::Relinked | Signal::ShutDown => {}
        }
    }
}

/// Lets the scheduler's task end.
impl Drop for Shared {
    fn drop(&mut self) {
        self.store.scheduler().look_again();
    }
}

impl From<List> for Vec<RefusedKey> {
    fn from(list: List) -> Self {
        let key = |(key, counted): (String, list::Counted)| RefusedKey {
            key,
            at_least: counted.at_least,
            at_most: counted.at_most,
        };
        list.keys.into_iter().map(key).collect()
    }
}

debug!(RefusedKeys, is_plain);
