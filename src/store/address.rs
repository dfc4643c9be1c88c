//! Creates a store from its settings and its address: URLs, or a pool ([`IntoPool`]).

use std::sync::Arc;

use crate::error::Error;
use crate::store::background::Background;
use crate::store::builder::StoreBuilder;
use crate::store::memory::bound::Bounds;
use crate::store::redis::RedisStore;
use crate::store::redis::library::Clock;
use crate::store::redis::names::check_name;
use crate::store::redis::pool::Sealed;
use crate::store::redis::source::Source;
use crate::store::{Backend, Store};

impl Store {
    /// Creates a store on the Redis server at a URL. It connects on first use.
    ///
    /// | URL | |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/db]` | without TLS |
    /// | `rediss://[user:password@]host[:port][/db]` | over TLS, with the feature `rustls` or `native-tls` |
    /// | `redis+unix:///path?db=2&user=app&pass=secret` | over a Unix socket; each parameter can be left out |
    ///
    /// ```
    /// use tower_distributed::Store;
    ///
    /// let store = Store::redis("redis+unix:///run/redis/redis.sock?db=2")?;
    /// assert!(Store::redis("127.0.0.1:6379").unwrap_err().is_invalid());
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the URL is not valid, or if it requires TLS and neither feature is enabled.
    pub fn redis(url: &str) -> Result<Self, Error> {
        Self::builder().redis(url)
    }
}

impl StoreBuilder {
    /// Creates a store on the Redis server at a URL: see [`Store::redis`].
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the URL or a setting is not valid.
    pub fn redis(self, url: &str) -> Result<Store, Error> {
        let source = Source::url(url, &self.access)?;
        let home = self.home()?;
        self.source(source, home)
    }

    /// Creates a store on a Redis Cluster from the URLs of some of its nodes. It finds the other nodes, including those
    /// that are added later. The nodes share the user, the password and the use of TLS. See [`Store`](Store#cluster).
    ///
    /// ```no_run
    /// use tower_distributed::Store;
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::builder().cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"])?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if there is no URL, if a URL or a setting is not valid, or if
    /// [`wakeups`](Self::wakeups) is set, which would have no effect.
    #[cfg(feature = "cluster")]
    pub fn cluster(self, urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Store, Error> {
        use crate::store::redis::cluster::Cluster;
        use crate::store::redis::slots::Masters;
        if !self.wakeups.is_empty() {
            return Err(Error::invalid(
                "`wakeups` must be unset for `cluster`, which subscribes at each master: it is for a pool",
            ));
        }
        let home = self.home()?;
        let masters = Arc::new(Masters::new(&home));
        let cluster = Cluster::new(urls, &self.access, self.limits.connect_timeout, masters)?;
        self.source(Source::Cluster(cluster, None), home)
    }

    /// Creates a store on the master with the given name, which the Redis Sentinels at the URLs report.
    ///
    /// All URLs must have the same user, password and database. The user and the password are those of the Sentinels;
    /// set those of Redis with [`credentials`](Self::credentials). The database is that of Redis. With `rediss://`, the
    /// store connects to the Sentinels and to the master over TLS.
    ///
    /// The store subscribes to the Sentinels, and queries them every 2 s. When they report another master, the store
    /// leaves the former one at once, even if that one still serves: calls in flight there [are
    /// unavailable](Error::is_unavailable).
    ///
    /// ```no_run
    /// use tower_distributed::{Credentials, Store};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::builder()
    ///     .credentials(Credentials::new("app", "secret"))
    ///     .sentinel(["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"], "mymaster")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if there is no URL or no name, if a URL or a setting is not valid, or if the
    /// users, passwords or databases of the URLs differ.
    #[cfg(feature = "sentinel")]
    pub fn sentinel(
        self,
        urls: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
    ) -> Result<Store, Error> {
        use crate::store::redis::sentinel::Sentinels;
        let home = self.home()?;
        let sentinels = Sentinels::new(urls, &self.access, master, &home)?;
        self.source(Source::Sentinel(Arc::new(sentinels)), home)
    }

    /// Creates a store on a pool of `deadpool_redis`, `deadpool_redis::cluster` or `deadpool_redis::sentinel`.
    ///
    /// The store makes connections in the same way as the pool. It takes no connections out of the pool, and does not
    /// call the hooks of the pool.
    ///
    /// A pool of `deadpool_redis` leaves Nagle's algorithm on: a call may wait for a whole round trip, until the server
    /// has acknowledged the previous one. Turn it off where you create the pool, as [`tcp_nodelay`](Self::tcp_nodelay)
    /// does for a store made from URLs:
    ///
    /// ```
    /// use tower_distributed::Store;
    /// use tower_distributed::deadpool_redis::redis::{IntoConnectionInfo, io::tcp::TcpSettings};
    /// use tower_distributed::deadpool_redis::{Manager, Pool, Runtime};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = "redis://127.0.0.1/".into_connection_info()?;
    /// let server = server.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    /// let pool = Pool::builder(Manager::new(server)?).runtime(Runtime::Tokio1).build()?;
    /// let store = Store::builder().pool(pool)?;
    /// # Ok(()) }
    /// ```
    ///
    /// Waiters are woken, and do not poll, if the store knows where to subscribe:
    ///
    /// ```
    /// use tower_distributed::Store;
    /// use tower_distributed::deadpool_redis::{Config, Runtime};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = Config::from_url("redis://127.0.0.1/").create_pool(Some(Runtime::Tokio1))?;
    /// let store = Store::builder()
    ///     .wakeups("redis://127.0.0.1/") // the server of the pool, so that waiters are woken and do not poll
    ///     .pool(pool)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if a setting is not valid, or is not supported for pools.
    pub fn pool(self, pool: impl IntoPool) -> Result<Store, Error> {
        if !self.access.is_default() && self.wakeups.is_empty() {
            return Err(Error::invalid(
                "a pool has credentials, certificates and socket options of its own: `credentials`, those of certificates, \
                 and those that begin with `tcp` are for `wakeups` beside it",
            ));
        }
        let home = self.home()?;
        self.source(Source::Pool(pool.into_pool(&home)), home)
    }

    /// Returns the runtime for work that depends on no caller.
    fn home(&self) -> Result<Background, Error> {
        self.background
            .clone()
            .map_or_else(|| Ok(Background::thread()), Background::runtime)
    }

    fn source(mut self, source: Source, home: Background) -> Result<Store, Error> {
        check_name("prefix", &self.prefix)?;
        self.limits.local_share = self.bounds(Bounds::LOCAL_SHARE)?;
        self.limits.check()?;
        if self.limits.durability.is_some() && source.is_pool_of_cluster() {
            return Err(Error::invalid(
                "`replicas` and `fsync` are not for a pool of a Cluster: give its URLs to `cluster`",
            ));
        }
        // A store on a pool does not know its server.
        let own = Some(&source).filter(|source| !source.is_pool()).cloned();
        let wakeups = own.into_iter().chain(self.subscribers(&source)?).collect();
        Ok(self.assemble(source, None, wakeups, home))
    }

    /// Returns the servers at which [`wakeups`](Self::wakeups) subscribes.
    fn subscribers(&self, source: &Source) -> Result<Vec<Source>, Error> {
        #[cfg(feature = "cluster")]
        if let Some(masters) = source.masters()
            && !self.wakeups.is_empty()
        {
            use crate::store::redis::cluster::Cluster;
            let longest = self.limits.connect_timeout;
            let cluster = Cluster::new(&self.wakeups, &self.access, longest, Arc::clone(masters))?;
            return Ok(vec![Source::Cluster(cluster, None)]);
        }
        #[cfg(not(feature = "cluster"))]
        let _ = source;
        self.wakeups
            .iter()
            .map(|url| Source::url(url, &self.access))
            .collect()
    }

    /// A store on a server whose scripts read the time with the Lua code `clock`.
    #[cfg(test)]
    pub(crate) fn with_clock(self, url: &str, clock: &'static str) -> Result<Store, Error> {
        let source = Source::url(url, &self.access)?;
        let wakeups = self.subscribers(&source)?;
        Ok(self.assemble(source, Some(clock), wakeups, Background::thread()))
    }

    fn assemble(
        self,
        source: Source,
        clock: Clock,
        wakeups: Vec<Source>,
        background: Background,
    ) -> Store {
        let store = RedisStore::new(source, self.prefix, self.limits, clock, wakeups, background);
        Store::on(Backend::Redis(Arc::new(store)))
    }
}

/// The pools that a [`Store`] can use. Sealed: implemented for the pools of `deadpool_redis`.
pub trait IntoPool: Sealed {}

impl<P: Sealed> IntoPool for P {}

/// Uses the default settings of [`StoreBuilder`].
///
/// A pool for Sentinels must be set to connect to masters. It does not expose its Sentinels, so the store cannot follow
/// them: it uses a former master until that master fails or is demoted. Locks can be granted twice meanwhile. A store
/// made by `StoreBuilder::sentinel` leaves a former master at once.
impl<P: IntoPool> From<P> for Store {
    fn from(pool: P) -> Self {
        let home = Background::thread();
        StoreBuilder::default().assemble(
            Source::Pool(pool.into_pool(&home)),
            None,
            Vec::new(),
            home,
        )
    }
}
