//! Where state lives: [`Store`]. Knows no primitive by name.

mod detached;
mod in_memory;
mod key;
mod namespace;
mod notifier;
mod operation;
mod redis;
mod scheduler;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::detached::see_to_the_end;
pub(crate) use self::in_memory::{Cells, Clock, lock};
pub use self::key::Key;
pub(crate) use self::key::{check_exact, check_name};
pub(crate) use self::namespace::{Client, Namespace, OperationFuture, detach};
pub(crate) use self::notifier::{HandOff, Link, Notifier, Push, Woken, number_of, process_of};
pub(crate) use self::operation::{Arguments, Cell, Field, Fields, Garbled, Never, Operation, Script, script};
#[cfg(test)]
pub(crate) use self::redis::pool::Pool;
pub(crate) use self::scheduler::{PeriodicTask, Scheduler};

use self::in_memory::InMemory;
use self::redis::RedisStore;
#[cfg(not(test))]
use self::redis::pool::Pool;
use self::redis::pool::Subscriber;
use crate::Error;

/// Where the state of limits lives: in Redis, or in this process.
///
/// A cheap clone; clones share connections and, in process, the state.
///
/// # On Redis
///
/// No call checks a connection out of the pool. A store keeps a few *lanes*: connections taken from the
/// pool once, shared by all calls, and replaced from the pool when they fail. Calls that are made
/// while others are in flight leave together as one script call, so a hot key costs Redis little more than an
/// idle one. Every call ends within the [time-out](StoreBuilder::timeout); after three outages in a row a
/// breaker answers at once and looks in the background whether the server is back.
///
/// Scripts are sent once: a call whose answer is lost may have charged, and is told as
/// [unavailable](Error::is_unavailable). Two cases may charge more than once, and never admit more: a connection
/// that was idle for a second or more and turns out to be closed is replaced and the call sent again; and a
/// `cluster` pool may repeat calls by itself, as its client is set up to.
///
/// All times are the server's; the clocks of clients do not matter. Where the server's own clock is set back, or a
/// failover leads to one that is behind, buckets in use refuse for that much longer. What the store keeps is named
/// `prefix:{namespace:key}:part` and expires by itself, but for buckets that
/// [never refill](crate::Quota::non_refilling) and filters that never [forget](crate::bloom_filter). A server that evicts keys (`maxmemory-policy allkeys-…`) fills buckets.
///
/// On a Cluster the breaker is one for each 256 slots, so that a master that is away concerns its own keys alone.
///
/// It takes Redis 6.2 or later, and where ACLs are in force the commands `EVALSHA`, `EVAL`, `TIME`, `GET`, `MGET`,
/// `SET` and `DEL` on `prefix:*` (and `INFO`, to check the version). Leases also take `EXISTS`, `INCRBY`, `PEXPIRE`,
/// `PTTL`, `PUBLISH`, `PUBSUB`, `SUBSCRIBE`, `PING`, the commands of lists and sorted sets, and the channels `prefix:wake:*`.
/// Bloom filters also take `BITCOUNT`, `BITFIELD`, `BITFIELD_RO`, `EXISTS`, `PEXPIRE`, `SETRANGE`, `STRLEN` and `UNLINK`.
///
/// Calls must be made within a tokio runtime.
///
/// ```no_run
/// use tower_distributed::Store;
///
/// # fn stores(pool: deadpool_redis::Pool) -> Result<(), tower_distributed::Error> {
/// let store = Store::redis("redis://127.0.0.1/")?;
/// let store = Store::from(pool);
/// # Ok(()) }
/// ```
///
/// TLS is a matter of the pool: switch on a TLS feature of `deadpool-redis` in your own `Cargo.toml`.
#[derive(Clone)]
pub struct Store(Arc<Backend>);

pub(crate) enum Backend {
    InMemory(InMemory),
    Redis(Arc<RedisStore>),
}

impl Store {
    /// State in this process: nothing to install, nothing shared with other processes.
    ///
    /// ```
    /// let store = tower_distributed::Store::in_memory();
    /// assert_eq!(store.to_string(), "in-memory");
    /// ```
    #[must_use]
    pub fn in_memory() -> Self {
        Self::with_clock(Clock::system())
    }

    /// State in the Redis server at a URL, `redis://[user:password@]host[:port][/db]`. Connects when first used.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the URL is not one.
    pub fn redis(url: &str) -> Result<Self, Error> {
        Self::builder().redis(url)
    }

    /// Settings of a store on Redis: prefix, time-out, lanes.
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }

    pub(crate) fn with_clock(clock: Clock) -> Self {
        Self(Arc::new(Backend::InMemory(InMemory::new(clock))))
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.0
    }

    /// Whether it is certainly the same place as another.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self.backend(), other.backend()) {
            (Backend::Redis(one), Backend::Redis(other)) => Arc::ptr_eq(one, other) || one.is_same(other),
            _ => Arc::ptr_eq(&self.0, &other.0),
        }
    }

    /// What notifier those who wait.
    pub(crate) fn notifier(&self) -> &Arc<Notifier> {
        match self.backend() {
            Backend::InMemory(store) => &store.notifier,
            Backend::Redis(store) => &store.notifier,
        }
    }

    /// What sees to that which must be done in time.
    pub(crate) fn scheduler(&self) -> &Arc<Scheduler> {
        match self.backend() {
            Backend::InMemory(store) => &store.scheduler,
            Backend::Redis(store) => &store.scheduler,
        }
    }

    /// What the names of the channels begin with that processes are woken by.
    pub(crate) fn channels(&self) -> String {
        match self.backend() {
            Backend::InMemory(_) => String::new(),
            Backend::Redis(store) => store.channels(),
        }
    }

    /// Whether whoever pushes learns for certain that nobody hears it.
    pub(crate) fn counts_hearers(&self) -> bool {
        match self.backend() {
            Backend::InMemory(_) => true,
            Backend::Redis(store) => store.counts_hearers(),
        }
    }

    /// Whether a call can be begun here: a call to Redis takes a runtime.
    pub(crate) fn can_begin(&self) -> bool {
        matches!(self.backend(), Backend::InMemory(_)) || tokio::runtime::Handle::try_current().is_ok()
    }

    /// Sees to it that pushes arrive, from now or soon.
    pub(crate) fn subscribe(&self) {
        if let Backend::Redis(store) = self.backend() {
            store.subscribe();
        }
    }
}

/// With the default settings of [`StoreBuilder`].
impl From<deadpool_redis::Pool> for Store {
    fn from(pool: deadpool_redis::Pool) -> Self {
        StoreBuilder::default().assemble(Pool::Server(pool), redis::CLOCK, Vec::new())
    }
}

/// With the default settings of [`StoreBuilder`].
#[cfg(feature = "cluster")]
impl From<deadpool_redis::cluster::Pool> for Store {
    fn from(pool: deadpool_redis::cluster::Pool) -> Self {
        StoreBuilder::default().assemble(Pool::Cluster(pool), redis::CLOCK, Vec::new())
    }
}

/// With the default settings of [`StoreBuilder`]. The pool must name masters.
#[cfg(feature = "sentinel")]
impl From<deadpool_redis::sentinel::Pool> for Store {
    fn from(pool: deadpool_redis::sentinel::Pool) -> Self {
        StoreBuilder::default().assemble(Pool::Sentinel(pool), redis::CLOCK, Vec::new())
    }
}

/// Which kind of store it is: `in-memory` or `redis`.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.backend() {
            Backend::InMemory(_) => "in-memory",
            Backend::Redis(_) => "redis",
        })
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.backend() {
            Backend::InMemory(store) => store.fmt(f),
            Backend::Redis(store) => store.fmt(f),
        }
    }
}

/// Settings of a [`Store`] on Redis.
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
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is given a Redis"]
pub struct StoreBuilder {
    prefix: String,
    timeout: Duration,
    lanes: usize,
    wakeups: Vec<String>,
    by_url: bool,
}

impl Default for StoreBuilder {
    fn default() -> Self {
        Self {
            prefix: "td".into(),
            timeout: Duration::from_millis(500),
            lanes: 1,
            wakeups: Vec::new(),
            by_url: false,
        }
    }
}

impl StoreBuilder {
    /// What all keys begin with, 1 to 64 of `A-Z a-z 0-9 - _ . /`. Default: `td`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Within what time every call to Redis ends, 1 ms to 1 minute. Default: 500 ms.
    ///
    /// Connections from a pool of your own may have a response time-out that is shorter: 500 ms unless set otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many connections to keep, 1 to 64. Default: 1.
    ///
    /// One serves hundreds of thousands of calls a second, and combines best; more help where
    /// this process has many cores to spare for them.
    pub fn connections(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
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

    /// State in the Redis server at a URL, see [`Store::redis`].
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the URL or a setting is not allowed.
    pub fn redis(mut self, url: &str) -> Result<Store, Error> {
        let pool = Pool::from_url(url)?;
        self.wakeups.insert(0, url.to_owned());
        self.by_url = true;
        self.pool(pool)
    }

    /// State behind a pool of one of `deadpool_redis`, `deadpool_redis::cluster` and `deadpool_redis::sentinel`.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where a setting is not allowed.
    pub fn pool(self, pool: impl IntoPool) -> Result<Store, Error> {
        key::check_name("the prefix", &self.prefix)?;
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&self.timeout) {
            return Err(Error::invalid(format!("the time-out must be 1 ms to 60 s, is {:?}", self.timeout)));
        }
        if !(1..=64).contains(&self.lanes) {
            return Err(Error::invalid(format!("there must be 1 to 64 lanes, got {}", self.lanes)));
        }
        let wakeups = self.wakeups.iter().map(|url| redis::pool::client(url)).collect::<Result<_, _>>()?;
        Ok(self.assemble(pool.into_pool(), redis::CLOCK, wakeups))
    }

    pub(crate) fn assemble(self, pool: Pool, clock: &'static str, wakeups: Vec<Subscriber>) -> Store {
        let store = RedisStore::new(pool, self.prefix, self.timeout, self.lanes, clock, wakeups, self.by_url);
        Store(Arc::new(Backend::Redis(Arc::new(store))))
    }
}

/// The pools that a [`Store`] can be built on. Sealed: implemented for those of `deadpool_redis`.
pub trait IntoPool: sealed::IntoPool {}

impl<P: sealed::IntoPool> IntoPool for P {}

mod sealed {
    use super::Pool;

    pub trait IntoPool {
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn into_pool(self) -> Pool;
    }

    macro_rules! into_pool {
        ($pool:ty, $kind:ident) => {
            impl IntoPool for $pool {
                #[allow(private_interfaces)]
                fn into_pool(self) -> Pool {
                    Pool::$kind(self)
                }
            }
        };
    }

    into_pool!(deadpool_redis::Pool, Server);
    #[cfg(feature = "cluster")]
    into_pool!(deadpool_redis::cluster::Pool, Cluster);
    #[cfg(feature = "sentinel")]
    into_pool!(deadpool_redis::sentinel::Pool, Sentinel);

    impl IntoPool for Pool {
        #[allow(private_interfaces)]
        fn into_pool(self) -> Pool {
            self
        }
    }
}
