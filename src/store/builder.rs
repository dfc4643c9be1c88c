//! The settings of a store: [`StoreBuilder`]. `address.rs` makes a store of them, from URLs or a pool.

#[cfg(test)]
#[cfg(all(feature = "cluster", feature = "pools", feature = "rustls"))]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::Error;
use crate::macros::setters;
use crate::store::Store;
use crate::store::base::PREFIX;
use crate::store::credentials::{ProvideCredentials, password_in};
use crate::store::memory::bound::Bounds;
use crate::store::memory::clock::Clock;
use crate::store::redis::endpoint::Access;
use crate::store::redis::limits::{Durability, Limits};

/// Settings of a [`Store`].
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::Store;
///
/// let store = Store::builder()
///     .prefix("shop")
///     .timeout(Duration::from_millis(100))         // for the reply to a call
///     .connect_timeout(Duration::from_millis(500)) // for a connection
///     .queue_timeout(Duration::from_millis(200))   // until a call is sent
///     .connections(2)                              // on each runtime
///     .max_queued(10_000)                          // further calls are overloaded at once
///     .max_queued_bytes(16 << 20)
///     .redis("redis://127.0.0.1/")?; // it connects on first use
/// # Ok::<(), tower_distributed::Error>(())
/// ```
///
/// # How long a call can take
///
/// A call ends within [`queue_timeout`](Self::queue_timeout) + [`connect_timeout`](Self::connect_timeout) +
/// [`timeout`](Self::timeout): 3.5 s with the defaults. A call on an idle, connected store takes at most
/// [`timeout`](Self::timeout). While the breaker is open, a call fails at once.
///
/// These cases take longer:
///
/// * As long as replies to earlier calls arrive, a call waits up to four times the `timeout`.
/// * If the connection turns out to be closed, the store connects and sends once more.
/// * If nothing was received on the connection for 1 s, a call that must not run twice waits for the reply to a `PING`
///   first, for up to `timeout`.
/// * If the server does not have the library or the script, the store sends it and then repeats the call, each with a
///   new `timeout`. If the server refuses writes, the store sends the call as a script.
/// * If a master of a Cluster redirects the call, the store sends it to the other master, with a new `timeout`. It
///   connects first if it has no connection there.
/// * While a slot of a Cluster is being moved, the store repeats the call until `timeout` is over. The last attempt has
///   a `timeout` of its own.
#[derive(Clone)]
#[must_use = "a builder does nothing until `redis`, `pool` or `in_memory` is called"]
pub struct StoreBuilder {
    pub(super) prefix: String,
    pub(super) limits: Limits,
    pub(super) access: Access,
    pub(super) wakeups: Vec<String>,
    pub(super) background: Option<Handle>,
    max_keys: Option<usize>,
    max_bytes: Option<usize>,
}

impl Store {
    /// Returns a builder with the settings of a store: prefix, timeouts, bounds, connections.
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }
}

impl Default for StoreBuilder {
    fn default() -> Self {
        Self {
            prefix: PREFIX.into(),
            limits: Limits::DEFAULT,
            access: Access::default(),
            wakeups: Vec::new(),
            background: None,
            max_keys: None,
            max_bytes: None,
        }
    }
}

setters! { StoreBuilder:
    /// Sets the prefix of all keys, 1 to 64 characters of `A-Z a-z 0-9 - _ . /`. Default: `td`.
    fn prefix(prefix: impl Into<String>) => prefix = prefix.into();

    /// Sets how long Redis may take to reply to a call, counted from sending it, 1 ms to 60 s. Default: 500 ms.
    ///
    /// A connection of your own pool may have a shorter response timeout: 500 ms unless you set it.
    fn timeout(timeout: Duration) => limits.timeout = timeout;

    /// Sets how long making a connection may take, 1 ms to 60 s. Default: 2 s, which is several round trips on a
    /// slow network.
    fn connect_timeout(timeout: Duration) => limits.connect_timeout = timeout;

    /// Sets how long an operation may wait in the queue before it is sent, 1 ms to 60 s. Default: 1 s.
    ///
    /// An operation that has waited longer is not sent. It [is overloaded](Error::is_overloaded) if Redis replies to
    /// other calls, otherwise it is [unavailable](Error::is_unavailable). Renewals, heartbeats, releases and
    /// confirmations are sent however long they have waited.
    fn queue_timeout(timeout: Duration) => limits.queue_timeout = timeout;

    /// Sets how many connections to keep on each runtime, 1 to 64. Default: 1.
    ///
    /// One connection serves hundreds of thousands of calls a second, and combines calls best. More connections
    /// help if this process has many cores to spare for them. Single flights use one more connection for their
    /// answers, which may be large.
    fn connections(connections: usize) => limits.connections = connections;

    /// Sets how many operations may wait to be sent on each runtime, 1 to 4 194 304. Default: 131 072, about half a
    /// second of work for Redis on one core.
    ///
    /// An operation above this bound fails at once and [is overloaded](Error::is_overloaded). If calls fail and Redis
    /// has not replied for the [timeout](Self::timeout), it is [unavailable](Error::is_unavailable) instead. Renewals,
    /// heartbeats, releases and confirmations do not count, are sent first and are never refused. Answers and responses
    /// to be stored are sent first too, but they count: above the bound, the answer of a flight is not stored and the
    /// next caller runs, and a response is tried again until its claim expires. To refuse earlier, put tower's
    /// `LoadShed` and `ConcurrencyLimit` outside of the layers.
    fn max_queued(operations: usize) => limits.max_queued = operations;

    /// Sets how many bytes the waiting operations may take on each runtime, 64 KiB to 256 GiB. Default: 64 MiB.
    ///
    /// An operation counts with its key, its payload and 256 bytes. An operation above this bound fails in the same way
    /// as above [`max_queued`](Self::max_queued).
    fn max_queued_bytes(bytes: usize) => limits.max_queued_bytes = bytes;

    /// Sets whether the store may use functions of Redis (`FUNCTION LOAD`, `FCALL`). Default: yes.
    ///
    /// A server from Redis 7 on, or Valkey, loads the store's library once and keeps it, in about 0.7 MB of memory. Its
    /// name is `td_` and a digest of its text. If the server has no functions, or the ACL of the user denies them, the
    /// store uses scripts by itself. Scripts cost the server more time for each call;
    /// [`Store::stats`](crate::Store::stats) shows which of the two is used. Set this only for servers on which
    /// functions must not be loaded.
    fn functions(functions: bool) => limits.functions = functions;

    /// Sets the runtime for work that must not depend on any caller: renewals, heartbeats, the subscription, releases
    /// after a drop, the look-up of a Cluster's masters, and calls made outside of any runtime. Default: a thread of
    /// this crate, `tower-distributed`, one for all stores of the process.
    ///
    /// It must be a multi_thread runtime that runs as long as the store is used. A current_thread runtime runs only
    /// during its `block_on`, so it is rejected.
    ///
    /// ```
    /// use tower_distributed::Store;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    /// let store = Store::builder().background(runtime.handle().clone()).redis("redis://127.0.0.1/")?;
    /// # Ok(()) }
    /// ```
    fn background(runtime: Handle) => background = Some(runtime);

    /// Sets for how many keys there may be state in the memory of this process, 1 or more. Default: 1 000 000. It
    /// applies to [`in_memory`](Self::in_memory), and to the [local share](crate::StoreFailure::LocalShare) of a store
    /// on Redis.
    ///
    /// Keys are counted over all namespaces of the store. A key counts in each namespace in which it has state.
    /// Each shard of a Bloom filter and each claim on an item counts as a key. A call that would leave state for
    /// one more key fails with [`is_overloaded`](Error::is_overloaded) and changes nothing. Keys that have state
    /// continue to work, and so do calls that leave no state, such as `peek` and `release`. State is never dropped
    /// to make room: no limit is forgotten, and no lock is granted twice.
    ///
    /// A key whose state has expired counts until the store notices it. A call that finds the store full first searches
    /// the next 1024 keys or more for expired ones, unless such a search found none within the last millisecond. Then
    /// the sweeper goes through all keys, with pauses of 20 times the duration of a sweep (at least 50 ms). With up to
    /// 1000 keys, an expired key therefore counts for at most 1 ms more.
    ///
    /// It bounds the number of keys; [`max_bytes`](Self::max_bytes) bounds their memory. The bound that is reached
    /// first applies.
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
    fn max_keys(max_keys: usize) => max_keys = Some(max_keys);

    /// Sets how many bytes the state in the memory of this process may take, 64 KiB or more. Default: 256 MiB for
    /// [`in_memory`](Self::in_memory), and 48 MiB for the [local share](crate::StoreFailure::LocalShare) of a store on
    /// Redis.
    ///
    /// Each key counts with its length, its state, and twice its slot in the table: about 300 bytes for a rate limit
    /// and 700 for a permit or a lock. A Bloom filter counts with all its bits from the first use of each of its
    /// shards, twice if it forgets.
    ///
    /// A call that would leave state for a new key above this bound fails in the same way as above
    /// [`max_keys`](Self::max_keys), and so does a call that stores an answer or a response. Answers and responses last
    /// long: once they fill the store, it has no room for new keys of limits and locks. If both are many, give each a
    /// store of its own. Keys that have state continue to work: their waiters are bounded by `max_waiters`.
    ///
    /// ```
    /// use tower_distributed::Store;
    ///
    /// let store = Store::builder().max_bytes(1 << 30).in_memory()?;
    /// // With Redis: the bound during an outage of Redis.
    /// let store = Store::builder().max_keys(100_000).max_bytes(16 << 20).redis("redis://127.0.0.1/")?;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    fn max_bytes(max_bytes: usize) => max_bytes = Some(max_bytes);

    /// Sets `TCP_NODELAY`: whether a call is sent at once, although the server has not acknowledged the previous one.
    /// Default: `true`. If it is `false`, a call may wait for a whole round trip. For a pool see [`pool`](Self::pool).
    fn tcp_nodelay(nodelay: bool) => access.tcp.nodelay = nodelay;

    /// Sets after how long without traffic the system probes whether the server still responds, 1 s to 1 hour, in whole
    /// seconds; `None`: never. Default: 15 s. It repeats the probe every third of that time. A connection to a host
    /// that has vanished thus ends although nothing is sent on it.
    fn tcp_keepalive(idle: impl Into<Option<Duration>>) => access.tcp.keepalive = idle.into();

    /// Sets how long sent data may be unacknowledged before the system ends a connection (`TCP_USER_TIMEOUT`), 1 s to 1
    /// hour; `None`: the default of the system, often 15 minutes. Default: 10 s. Has an effect on Linux, Android and
    /// Fuchsia. It also ends a connection to a server that reads nothing for that time. Calls fail earlier: see
    /// [`timeout`](Self::timeout).
    fn tcp_user_timeout(limit: impl Into<Option<Duration>>) => access.tcp.user_timeout = limit.into();

    /// Sets where user names and passwords come from, in place of those in the URL:
    /// [`Credentials`](crate::Credentials), or an asynchronous closure. Each new connection calls the closure, so
    /// credentials can change, as short-lived tokens do. A pool has its own credentials; a store on a pool uses these
    /// for [`wakeups`](Self::wakeups).
    ///
    /// A connection stays authenticated when its credentials expire. When the server drops it, the next connection uses
    /// new ones. The time that the closure takes counts as connecting.
    ///
    /// The closure must not block: it also runs on the [`background`](Self::background) thread, where it would delay
    /// the renewals of all leases. Use `tokio::task::spawn_blocking` for blocking code.
    ///
    /// ```no_run
    /// use tower_distributed::{Credentials, Store};
    ///
    /// async fn token() -> Result<String, std::io::Error> {
    ///     Ok("valid for 15 minutes".to_owned()) // from the service that signs tokens
    /// }
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::builder()
    ///     .credentials(|| async { token().await.map(|token| Credentials::new("app", token)) })
    ///     .redis("redis://redis.internal")?;
    /// # Ok(()) }
    /// ```
    fn credentials(credentials: impl ProvideCredentials) => access.credentials = Some(Arc::new(credentials));
}

#[cfg(any(feature = "rustls", feature = "native-tls"))]
setters! { StoreBuilder:
    /// Trusts only these root certificates, for URLs with `rediss://`. One or more certificates in PEM. For a pool see
    /// [`credentials`](Self::credentials).
    ///
    /// By default a server is trusted if a root certificate of the operating system signed its certificate, or one of
    /// Mozilla's with the feature `rustls-webpki-roots`. With `rustls`, those of the operating system are read once per
    /// process. The certificate must be valid for the host in the URL. This check cannot be turned off: for a server
    /// with a certificate of your own, pass the certificate of your authority.
    ///
    /// ```no_run
    /// use tower_distributed::Store;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::builder()
    ///     .root_certificates(std::fs::read("/etc/redis/ca.pem")?)
    ///     .client_certificate(std::fs::read("/etc/redis/client.pem")?, std::fs::read("/etc/redis/client.key")?)
    ///     .redis("rediss://redis.example.com")?;
    /// # Ok(()) }
    /// ```
    fn root_certificates(pem: impl Into<Vec<u8>>) => access.tls.roots = Some(pem.into());

    /// Sets the certificate for servers that require a client certificate: the certificate, followed by its chain if it
    /// has one, and its private key. Both in PEM; with `native-tls` the key must be PKCS #8. For a pool see
    /// [`credentials`](Self::credentials).
    fn client_certificate(certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>)
        => access.tls.client = Some((certificate.into(), key.into()));
}

impl StoreBuilder {
    /// Makes every call of the store wait, by the command `WAIT`, until `count` replicas have received it. Default: no
    /// replica. For locks, permits and claims that must survive the failure of a master.
    ///
    /// Replication is asynchronous: a master that dies, or is cut off, may have granted a lock that its successor does
    /// not know and grants again. With this setting a grant or a renewal of a lease counts only once `count` replicas
    /// have it. If `count` is the number of all replicas, no lock is granted twice by a failover. If it is smaller, the
    /// successor may be a replica that does not have the lock. Also set `min-replicas-to-write` on the servers, so that
    /// a master that is cut off stops granting.
    ///
    /// If the replicas have not received a call within `within` (1 ms to half of [`timeout`](Self::timeout)), the call
    /// fails with an error that [is unavailable](Error::is_unavailable), and a lease that it was granted is released.
    /// The master may have run it.
    ///
    /// `WAIT` blocks the connection. Therefore use a separate store for the locks that need this, and another one for
    /// limits. A pool of a Cluster does not support this: use its [URLs](Self::cluster). While a node of a Cluster
    /// passes on the last of its slots, calls for the keys that have not moved yet fail.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let durable = Store::builder().replicas(1, Duration::from_millis(100)).redis("redis://redis.internal")?;
    /// let payments = Mutex::new(&durable, "payments")?;
    /// # Ok(()) }
    /// ```
    pub fn replicas(mut self, count: u32, within: Duration) -> Self {
        let fsync = self
            .limits
            .durability
            .is_some_and(|durability| durability.fsync);
        self.limits.durability = Some(Durability {
            replicas: count,
            fsync,
            within,
        });
        self
    }

    /// Makes every call of the store wait, by the command `WAITAOF`, until the server has written it to its append-only
    /// file on disk. Default: no. Needs Redis 7.2 or Valkey, and `appendonly yes`.
    ///
    /// A server with `appendfsync everysec` loses up to a second of writes if its host crashes. With this setting a
    /// grant or a renewal of a lease counts only once it is on disk. Together with [`replicas`](Self::replicas), that
    /// many replicas must have it on their disks as well.
    ///
    /// If a call is not on disk within `within` (1 ms to half of [`timeout`](Self::timeout); the later call of `fsync`
    /// and `replicas` sets it), the call fails with an error that [is unavailable](Error::is_unavailable), and a lease
    /// that it was granted is released. With `appendfsync everysec`, a write is on disk after up to a second or a
    /// little more: set longer timeouts. Use a separate store for the locks that need this, since `WAITAOF` blocks the
    /// connection.
    ///
    /// Each renewal may take `within`, so set a [`ttl`](crate::mutex::MutexBuilder::ttl) of 3 × `within` or more. A
    /// lease that is granted to a waiter that has crashed expires after 1.5 s + 3 × `within`. The same holds for
    /// `replicas`. Use the same settings in all processes, since the process that releases a lease sets this time.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tower_distributed::{Mutex, Store};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let durable = Store::builder()
    ///     .timeout(Duration::from_secs(5))
    ///     .fsync(Duration::from_millis(2500))
    ///     .redis("redis://redis.internal")?;
    /// let payments = Mutex::builder().ttl(Duration::from_secs(60)).build(&durable, "payments")?;
    /// # Ok(()) }
    /// ```
    pub fn fsync(mut self, within: Duration) -> Self {
        let replicas = self
            .limits
            .durability
            .map_or(0, |durability| durability.replicas);
        self.limits.durability = Some(Durability {
            replicas,
            fsync: true,
            within,
        });
        self
    }

    /// Adds the URL of a server at which a store on a pool subscribes to wake-ups: the server behind the pool, or a
    /// node of the Cluster. May be called several times. The store uses the first server that responds; on a Cluster it
    /// finds all masters from these nodes, and subscribes at each of them.
    ///
    /// When a lease is granted to a waiter, a message wakes the waiter. The subscription needs its own connection,
    /// and a pool does not reveal how to connect to its server. Without this setting, the waiters of a store on a
    /// pool poll 20 times a second, also on a Cluster. A store that is made from URLs does not need this setting, and
    /// [`cluster`](Self::cluster) refuses it.
    ///
    /// User and password are those of the URL. A `rediss://` URL trusts the default root certificates only; for an
    /// authority of your own, make the store from URLs.
    pub fn wakeups(mut self, url: impl Into<String>) -> Self {
        self.wakeups.push(url.into());
        self
    }

    /// Makes the store connect through a simulated network.
    #[cfg(simulation)]
    pub fn dial(mut self, dial: Arc<dyn crate::store::dial::Dial>) -> Self {
        self.access.dial = Some(dial);
        self
    }

    /// Sets a file with the password, which is read for each new connection: for secrets that are mounted into a
    /// container and rotated. A line end after the password is ignored. The user is that of the URL, or `default`. For
    /// a pool see [`credentials`](Self::credentials).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the file cannot be read.
    ///
    /// ```no_run
    /// use tower_distributed::Store;
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::builder().password_file("/run/secrets/redis")?.redis("redis://app@redis.internal")?;
    /// # Ok(()) }
    /// ```
    pub fn password_file(self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path: Arc<Path> = path.as_ref().into();
        password_in(&path).map_err(|error| Error::invalid(error.to_string()))?;
        Ok(self.credentials(move || {
            let path = Arc::clone(&path);
            async move { tokio::task::spawn_blocking(move || password_in(&path)).await? }
        }))
    }

    /// Creates a store in the memory of this process, like [`Store::in_memory`], with [`max_keys`](Self::max_keys) and
    /// [`max_bytes`](Self::max_bytes). The other settings apply to Redis only and have no effect.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if one of them is out of its range.
    pub fn in_memory(self) -> Result<Store, Error> {
        Ok(Store::of_memory(
            Clock::system(),
            self.bounds(Bounds::DEFAULT)?,
        ))
    }

    /// Returns the bounds of the state in memory, or `usual` if none is set.
    pub(super) fn bounds(&self, usual: Bounds) -> Result<Bounds, Error> {
        let bounds = Bounds {
            max_keys: self.max_keys.unwrap_or(usual.max_keys),
            max_bytes: self.max_bytes.unwrap_or(usual.max_bytes),
        };
        bounds.check().map(|()| bounds)
    }
}

/// Omits the URLs, which may contain passwords.
impl fmt::Debug for StoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuilder")
            .field("prefix", &self.prefix)
            .field("limits", &self.limits)
            .field("wakeups", &self.wakeups.len())
            .finish_non_exhaustive()
    }
}
