//! The settings of a store: [`StoreBuilder`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::background::Background;
use super::in_memory::{Clock, InMemory};
use super::redis::source::{Source, Subscriber, subscriber};
use super::redis::{CLOCK, RedisStore};
use super::{Backend, Store, key, redis};
use crate::Error;

/// What names begin with unless that is set.
pub(super) const PREFIX: &str = "td";

/// Settings of a [`Store`].
///
/// ```no_run
/// use std::time::Duration;
/// use tower_distributed::Store;
///
/// let store = Store::builder()
///     .prefix("shop")
///     .timeout(Duration::from_millis(100))
///     .redis("redis://127.0.0.1/")?;
/// # Ok::<(), tower_distributed::Error>(())
/// ```
///
/// # How long a call can take
///
/// A call ends within [`queue_timeout`](Self::queue_timeout) + [`connect_timeout`](Self::connect_timeout) +
/// [`timeout`](Self::timeout): 3.5 s with the defaults. A call on an idle store that is connected waits for the last
/// alone. While the breaker is open, it ends at once.
///
/// Three things add to that. As long as replies to earlier calls arrive, a call is waited for up to four time-outs. A
/// connection that turns out to be closed is made once more. A script that the server does not know is sent once more, with
/// a time-out of its own.
#[derive(Clone)]
#[must_use = "a builder does nothing until it is given a Redis or told `in_memory`"]
pub struct StoreBuilder {
    prefix: String,
    limits: Limits,
    wakeups: Vec<String>,
    background: Option<Handle>,
    max_keys: Option<usize>,
}

/// How long things may take, and how much of them there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) queue_timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) max_queued: usize,
    pub(crate) max_queued_bytes: usize,
}

impl Default for StoreBuilder {
    fn default() -> Self {
        Self {
            prefix: PREFIX.into(),
            limits: Limits {
                timeout: Duration::from_millis(500),
                connect_timeout: Duration::from_secs(2),
                queue_timeout: Duration::from_secs(1),
                connections: 1,
                max_queued: 131_072,
                max_queued_bytes: 64 << 20,
            },
            wakeups: Vec::new(),
            background: None,
            max_keys: None,
        }
    }
}

impl StoreBuilder {
    /// What all keys begin with, 1 to 64 of `A-Z a-z 0-9 - _ . /`. Default: `td`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long Redis may take to answer a call, counted from its sending, 1 ms to 1 minute. Default: 500 ms.
    ///
    /// Connections from a pool of your own may have a response time-out that is shorter: 500 ms unless set otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.limits.timeout = timeout;
        self
    }

    /// How long making a connection may take, 1 ms to 1 minute. Default: 2 s, some round trips of a slow network.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.limits.connect_timeout = timeout;
        self
    }

    /// How long an operation may wait in the queue before it is sent, 1 ms to 1 minute. Default: 1 s.
    ///
    /// One that has waited longer is not sent: it [is overloaded](Error::is_overloaded) where Redis answers others, else
    /// [unavailable](Error::is_unavailable).
    pub fn queue_timeout(mut self, timeout: Duration) -> Self {
        self.limits.queue_timeout = timeout;
        self
    }

    /// How many connections to keep on each runtime, 1 to 64. Default: 1.
    ///
    /// One serves hundreds of thousands of calls a second, and combines best; more help where
    /// this process has many cores to spare for them. Single flights have one more for their answers, which may be large.
    pub fn connections(mut self, connections: usize) -> Self {
        self.limits.connections = connections;
        self
    }

    /// How many operations may wait to be sent on each runtime, 1 to 4 194 304. Default: 131 072, about half a second of what
    /// Redis can do on one core.
    ///
    /// One more [is overloaded](Error::is_overloaded) and refused at once, unless Redis has not answered for the time of
    /// a [time-out](Self::timeout): then it is [unavailable](Error::is_unavailable). Renewals, heartbeats, releases and
    /// confirmations do not count, go first and are never refused. To refuse earlier, put tower's `LoadShed` and
    /// `ConcurrencyLimit` outside of the layers.
    pub fn max_queued(mut self, operations: usize) -> Self {
        self.limits.max_queued = operations;
        self
    }

    /// How many bytes the operations that wait on each runtime may take up, their keys and payloads and 256 bytes for each, 64 KiB to 256
    /// GiB. Default: 64 MiB.
    pub fn max_queued_bytes(mut self, bytes: usize) -> Self {
        self.limits.max_queued_bytes = bytes;
        self
    }

    /// Where to run what must not depend on any caller: renewals, heartbeats, the subscription, releases after a drop, and
    /// calls made outside of any runtime. Default: a thread of this crate's own, `tower-distributed`, one for all stores
    /// of the process.
    ///
    /// It must be a multi_thread runtime that goes on as long as the store is used: a current_thread runtime runs only
    /// while somebody is in its `block_on`, and is refused.
    pub fn background(mut self, runtime: Handle) -> Self {
        self.background = Some(runtime);
        self
    }

    /// Where to subscribe to wake-ups: the URL of the server behind a pool, or of any node of a Cluster. May be
    /// said several times; what answers first is used.
    ///
    /// Those who wait for a lease are woken by a message when it is granted to them. A pool does not give away how
    /// to connect to its server otherwise, and a connection that is subscribed is good for nothing else; so without
    /// this, waiters of a store on a pool ask again 20 times a second.
    pub fn wakeups(mut self, url: impl Into<String>) -> Self {
        self.wakeups.push(url.into());
        self
    }

    /// For how many keys an in-memory store keeps state at most, 1 or more. Default: no bound.
    ///
    /// Keys are counted over all namespaces of the store. A key counts in each namespace in which it has state; each
    /// shard of a Bloom filter and each claim on an item counts as a key. A call that would leave state for one more key is
    /// refused with [`is_overloaded`](Error::is_overloaded) and changes nothing. Keys that have state go on working, and so
    /// do calls that leave no state, such as `peek` and `release`. State is never dropped to make room: no limit is
    /// forgotten, and no lock is given away.
    ///
    /// Keys whose state has expired do not count once that is noticed. A call that finds the store full looks at the
    /// next 1024 keys or more for expired ones before it is refused, unless a call has done so in vain within the last
    /// millisecond; then the sweeper goes through all keys, with pauses of 20 times as long as that takes (50 ms at least).
    /// So with up to 1000 keys an expired key counts for at most 1 ms more.
    ///
    /// Set this where clients choose the keys: it bounds the number of keys, and not the length of each.
    ///
    /// ```
    /// use tower_distributed::{Quota, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::builder().max_keys(1).in_memory()?;
    /// let bucket = TokenBucket::new(&store, "api", Quota::per_hour(10))?;
    /// assert!(bucket.allow("ann").await?.is_admitted());
    /// assert!(bucket.allow("bob").await.is_err_and(|error| error.is_overloaded()));
    /// assert!(bucket.allow("ann").await?.is_admitted());
    /// # Ok(()) }
    /// ```
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = Some(max_keys);
        self
    }

    /// State in this process, as [`Store::in_memory`], with [`max_keys`](Self::max_keys). The other settings concern
    /// Redis and have no effect.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where `max_keys` is 0.
    pub fn in_memory(self) -> Result<Store, Error> {
        if self.max_keys == Some(0) {
            return Err(Error::invalid("max_keys must be 1 or more, is 0"));
        }
        Ok(Store(Arc::new(Backend::InMemory(InMemory::new(Clock::system(), self.max_keys)))))
    }

    /// State in the Redis server at a URL, see [`Store::redis`].
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the URL or a setting is not allowed.
    pub fn redis(mut self, url: &str) -> Result<Store, Error> {
        let source = Source::url(url)?;
        self.wakeups.insert(0, url.to_owned());
        self.source(source)
    }

    /// State behind a pool of one of `deadpool_redis`, `deadpool_redis::cluster` and `deadpool_redis::sentinel`.
    ///
    /// Connections are made as the pool makes them, and are not taken out of it; its hooks are not called.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where a setting is not allowed.
    pub fn pool(self, pool: impl IntoPool) -> Result<Store, Error> {
        self.source(pool.into_source())
    }

    fn source(self, source: Source) -> Result<Store, Error> {
        key::check_name("the prefix", &self.prefix)?;
        if let Some(max_keys) = self.max_keys {
            let text =
                format!("max_keys is for stores in memory only, a store on Redis was given {max_keys}");
            return Err(Error::invalid(text));
        }
        self.limits.check()?;
        let wakeups = self.wakeups.iter().map(|url| subscriber(url)).collect::<Result<_, _>>()?;
        let background = match &self.background {
            Some(runtime) => Background::runtime(runtime.clone())?,
            None => Background::thread(),
        };
        Ok(self.assemble(source, CLOCK, wakeups, background))
    }

    pub(crate) fn assemble(
        self,
        source: Source,
        clock: &'static str,
        wakeups: Vec<Subscriber>,
        background: Background,
    ) -> Store {
        let store = RedisStore::new(source, self.prefix, self.limits, clock, wakeups, background);
        Store(Arc::new(Backend::Redis(Arc::new(store))))
    }
}

impl Limits {
    fn check(&self) -> Result<(), Error> {
        for (what, span) in [
            ("the time-out", self.timeout),
            ("the connect time-out", self.connect_timeout),
            ("the queue time-out", self.queue_timeout),
        ] {
            if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&span) {
                return Err(Error::invalid(format!("{what} must be 1 ms to 60 s, is {span:?}")));
            }
        }
        for (what, range, value) in [
            ("connections", 1..=64, self.connections),
            ("queued operations", 1..=redis::MOST_OPERATIONS, self.max_queued),
            ("queued bytes", 1 << 16..=redis::MOST_BYTES, self.max_queued_bytes),
        ] {
            if !range.contains(&value) {
                let (least, most) = range.into_inner();
                return Err(Error::invalid(format!("there must be {least} to {most} {what}, got {value}")));
            }
        }
        Ok(())
    }
}

/// Without the URLs, which may hold passwords.
impl fmt::Debug for StoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuilder")
            .field("prefix", &self.prefix)
            .field("limits", &self.limits)
            .field("wakeups", &self.wakeups.len())
            .finish_non_exhaustive()
    }
}

/// The pools that a [`Store`] can be built on. Sealed: implemented for those of `deadpool_redis`.
pub trait IntoPool: sealed::IntoSource {}

impl<P: sealed::IntoSource> IntoPool for P {}

/// With the default settings of [`StoreBuilder`].
impl From<deadpool_redis::Pool> for Store {
    fn from(pool: deadpool_redis::Pool) -> Self {
        StoreBuilder::default().with_defaults(pool)
    }
}

/// With the default settings of [`StoreBuilder`].
#[cfg(feature = "cluster")]
impl From<deadpool_redis::cluster::Pool> for Store {
    fn from(pool: deadpool_redis::cluster::Pool) -> Self {
        StoreBuilder::default().with_defaults(pool)
    }
}

/// With the default settings of [`StoreBuilder`]. The pool must name masters.
#[cfg(feature = "sentinel")]
impl From<deadpool_redis::sentinel::Pool> for Store {
    fn from(pool: deadpool_redis::sentinel::Pool) -> Self {
        StoreBuilder::default().with_defaults(pool)
    }
}

impl StoreBuilder {
    fn with_defaults(self, pool: impl IntoPool) -> Store {
        self.assemble(pool.into_source(), CLOCK, Vec::new(), Background::thread())
    }
}

mod sealed {
    use super::Source;

    pub trait IntoSource {
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn into_source(self) -> Source;
    }

    impl IntoSource for deadpool_redis::Pool {
        #[allow(private_interfaces)]
        fn into_source(self) -> Source {
            Source::Server(self)
        }
    }

    #[cfg(feature = "cluster")]
    impl IntoSource for deadpool_redis::cluster::Pool {
        #[allow(private_interfaces)]
        fn into_source(self) -> Source {
            Source::Cluster(self, Default::default())
        }
    }

    #[cfg(feature = "sentinel")]
    impl IntoSource for deadpool_redis::sentinel::Pool {
        #[allow(private_interfaces)]
        fn into_source(self) -> Source {
            Source::Sentinel(self)
        }
    }
}
