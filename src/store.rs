//! The store of all state, in the memory of this process or on Redis: [`Store`]. It does not depend on any primitive.

pub(crate) mod address;
pub(crate) mod background;
pub(crate) mod base;
pub(crate) mod builder;
pub(crate) mod client;
pub(crate) mod credentials;
pub(crate) mod detach;
pub(crate) mod detached;
#[cfg(simulation)]
pub mod dial;
pub(crate) mod failure;
pub(crate) mod inspect;
#[cfg(interleavings)]
pub(crate) mod interleavings;
#[cfg(any(feature = "concurrency-limit", feature = "rate-limit"))]
pub(crate) mod known_keys;
pub(crate) mod memory;
pub(crate) mod notifier;
pub(crate) mod operation;
pub(crate) mod owed;
#[cfg(any(feature = "concurrency-limit", feature = "rate-limit"))]
pub(crate) mod processes;
pub(crate) mod redis;
#[cfg(any(feature = "concurrency-limit", feature = "rate-limit"))]
pub(crate) mod replicas;
pub(crate) mod scheduler;
pub(crate) mod stats;
pub(crate) mod timer;
pub(crate) mod validity;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::Error;
use crate::store::background::Background;
use crate::store::base::Base;
use crate::store::detached::{DetachedWork, Left};
use crate::store::memory::InMemory;
use crate::store::memory::bound::Bounds;
use crate::store::memory::clock::Clock;
use crate::store::notifier::Notifier;
use crate::store::owed::{Owed, PendingGuard};
use crate::store::redis::RedisStore;
use crate::store::scheduler::Scheduler;
use crate::store::timer::within;
#[cfg(feature = "metrics")]
use crate::telemetry;

/// The storage of all state: Redis, or the memory of this process.
///
/// A store is cheap to clone. Clones share connections, and the state in memory.
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
/// [`StoreBuilder`](crate::StoreBuilder) has the settings, including those for TLS, changing credentials, Cluster and
/// Sentinel.
///
/// # On Redis
///
/// A store makes its own [`connections`](crate::StoreBuilder::connections) on each runtime that uses it; no call checks
/// a connection out of a pool. All calls on the runtime share these connections. A connection is replaced when it fails
/// and closed when the runtime ends. Calls that are made while others are in flight are sent as one script call,
/// so a hot key costs Redis little more than an idle one.
///
/// Every call ends within [a time that the builder sets](crate::StoreBuilder#how-long-a-call-can-take). After three
/// failures in a row, or when no connection can be made, a circuit breaker opens: calls fail at once. An open
/// breaker lets one call through as a probe after a random pause of up to 25 ms, or of up to the time that the failed
/// call took, if that is longer. Each failed probe doubles the 25 ms. No pause is longer than 1 s.
///
/// A call depends only on the runtime that awaits it. Renewals, releases after a drop and other work that must not
/// depend on a caller run on [a thread of this crate](crate::StoreBuilder::background). This thread also runs calls
/// made outside of any runtime.
///
/// The store requires Redis 6.2 or later.
///
/// # Overload
///
/// The number of operations that may wait for Redis on each runtime is [bounded](crate::StoreBuilder::max_queued). A
/// call above the bound [is overloaded](Error::is_overloaded) and fails at once. This is not an outage, and no layer
/// admits a request because of it.
///
/// # Repeated calls
///
/// A call that may have run is not sent again if its result could differ the second time: a rate limit would charge
/// twice, and [`insert`](crate::BloomFilter::insert) would find its own item. If the reply to such a call is lost, its
/// error [is unavailable](Error::is_unavailable), and nothing was decided. If the connection was idle for 1 s or more,
/// the store first sends a `PING`, so that a connection that was closed meanwhile fails no call.
///
/// Calls of locks and claims carry a token, and calls that only read give the same result again. If their connection
/// was idle for 1 s or more and turns out to be closed, the store sends them again.
///
/// A store on a pool for a Cluster is an exception: the client of the pool repeats all calls by itself. A rate limit
/// may then charge twice, but it never admits more; and [`BloomFilter::insert`](crate::BloomFilter::insert) may report
/// that a new item was contained. A store made by `StoreBuilder::cluster` does not repeat calls.
///
/// # Time and expiry
///
/// All times are those of the Redis server; the clocks of clients do not matter. If the clock of the server is set
/// back, or after a failover to a server whose clock is behind, buckets in use refuse requests for that much
/// longer.
///
/// The keys in Redis have names of the form `prefix:{namespace:key}:part`. They expire by themselves, except for
/// buckets that [never refill](crate::Quota::non_refilling), filters that never [forget](crate::bloom_filter), and
/// [settings of the fleet](crate::fleet).
/// If the server evicts keys (`maxmemory-policy allkeys-…`), an evicted bucket is full again.
///
/// # Cluster
///
/// `StoreBuilder::cluster` takes the URLs of some nodes, and finds the others with `CLUSTER SLOTS`. On each runtime
/// each master has its own connections, queue and breaker. A master that is down or slow affects only its own keys.
///
/// * A call that a master redirects (`MOVED`, `ASK`) has not run. The store sends it to the node that has the slot.
/// * While a slot is being moved, a node refuses calls for keys of which it has only some parts (`TRYAGAIN`). The store
///   sends such a call again until the [`timeout`](crate::StoreBuilder::timeout) is over.
/// * The subscription to wake-ups is one connection to each master. From Redis 7.0 on, a wake-up is a sharded message
///   (`SPUBLISH`): it goes to the master of its key, and costs the others nothing. Otherwise it goes to all nodes, and
///   the store drops the copies.
///
/// A store on a pool of a Cluster has a queue and a breaker for each master as well. Each of its connections is a
/// client of the pool's kind, which connects to all nodes and follows redirections.
///
/// # ACLs
///
/// [`acl_rule`](Self::acl_rule) returns the command that gives a user of Redis the permissions that this store needs.
/// If a call is denied, its error names the permission to add: see
/// [`guide::errors`](crate::guide::errors#what-the-server-denies).
///
/// # Forks
///
/// A forked child process must create its own stores. A store of the parent returns errors in the child, and never
/// sends anything on the parent's connections. This crate has no control over data that the parent's runtime had
/// begun to write.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

/// What all clones of a store share.
struct Shared {
    backend: Backend,
    /// See [`Store::local_share`].
    local_share: OnceLock<Store>,
}

pub(crate) enum Backend {
    InMemory(InMemory),
    Redis(Arc<RedisStore>),
}

impl Store {
    /// Creates a store in the memory of this process. It needs no server and shares nothing with other processes.
    ///
    /// It holds the state of up to a million keys in up to 256 MiB: see [`max_keys`](crate::StoreBuilder::max_keys) and
    /// [`max_bytes`](crate::StoreBuilder::max_bytes).
    ///
    /// The store uses tokio's clock. A test may pause and advance this clock; pause it before the first lease is
    /// taken, so that leases are renewed by the paused clock.
    ///
    /// ```
    /// let store = tower_distributed::Store::in_memory();
    /// assert_eq!(store.to_string(), "in-memory");
    /// ```
    #[must_use]
    pub fn in_memory() -> Self {
        Self::of_memory(Clock::system(), Bounds::DEFAULT)
    }

    fn of_memory(clock: Clock, bounds: Bounds) -> Self {
        Self::on(Backend::InMemory(InMemory::new(clock, bounds)))
    }

    #[cfg(test)]
    pub(crate) fn with_clock(clock: Clock) -> Self {
        Self::of_memory(clock, Bounds::NONE)
    }

    pub(crate) fn on(backend: Backend) -> Self {
        #[cfg(feature = "metrics")]
        telemetry::describe_metrics();
        Self(Arc::new(Shared {
            backend,
            local_share: OnceLock::new(),
        }))
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.0.backend
    }

    fn base(&self) -> &Base {
        match &self.0.backend {
            Backend::InMemory(store) => &store.base,
            Backend::Redis(store) => &store.base,
        }
    }

    fn on_redis(&self) -> Option<&Arc<RedisStore>> {
        match &self.0.backend {
            Backend::InMemory(_) => None,
            Backend::Redis(store) => Some(store),
        }
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.0.backend, Backend::InMemory(_))
    }

    /// Whether this store and `other` certainly have the same state.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self.backend(), other.backend()) {
            (Backend::Redis(one), Backend::Redis(other)) => {
                Arc::ptr_eq(one, other) || one.is_same(other)
            }
            _ => Arc::ptr_eq(&self.0, &other.0),
        }
    }

    /// Waits for detached work and for all pending background operations, such as releases after drops, and closes the
    /// connections. Use it for a clean exit of the process, after the server has drained.
    ///
    /// 1. It waits for *detached work*: requests of `web::idempotency`, requests of `web::dedupe` and runs of single
    ///    flights that [go on](crate::single_flight::SingleFlightBuilder::go_on), refreshes of stale answers, and
    ///    retries of failed confirmations. The client of such a request may have left, and the server then no longer
    ///    waits for it. The store serves the calls of this work meanwhile. The last quarter of `limit`, 1 s at most, is
    ///    kept for the next steps.
    /// 2. Pending answers of flights are published, in at most half of the remaining time.
    /// 3. Leases that are still held, such as those of requests that a timeout has cut off, end: they signal
    ///    [`lost`](crate::LeaseHandle::lost) and are released. Detached work that still runs keeps its claim or lead,
    ///    and the leases that it has acquired, even if its runtime ends: another process gets them after their ttl.
    ///    Locks that are kept [at least](crate::mutex::MutexBuilder::at_least_for) for a time stay as well.
    /// 4. Calls that have been sent are completed, and the connections are closed. A later call connects again.
    ///
    /// A store in memory waits for detached work only.
    ///
    /// ```no_run
    /// # async fn serve(listener: tokio::net::TcpListener, app: axum::Router) -> Result<(), tower::BoxError> {
    /// # async fn sigterm() {}
    /// # let store = tower_distributed::Store::in_memory();
    /// axum::serve(listener, app).with_graceful_shutdown(sigterm()).await?;
    /// // Kubernetes kills the process 30 s after SIGTERM.
    /// if let Err(left) = store.shutdown(std::time::Duration::from_secs(20)).await {
    ///     eprintln!("{left}"); // still running within 20s: 1 of idempotency "payments"
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_timeout`](Error::is_timeout) if this takes longer than
    /// `limit`. The text names the work that still runs, and the number of operations that are left.
    pub async fn shutdown(&self, limit: Duration) -> Result<(), Error> {
        let left = match self.on_redis() {
            None => {
                let work = &self.base().detached;
                let _ = within(limit, work.none()).await;
                Left {
                    work: work.leave(),
                    operations: 0,
                }
            }
            Some(store) => {
                let background = self.base().background.clone();
                let store = Arc::clone(store);
                // On the background thread, since there may be no runtime here.
                background
                    .run(async move { store.shutdown(limit).await })
                    .await?
            }
        };
        left.check(limit)
    }

    /// The work that continues when its callers leave.
    pub(crate) fn detached(&self) -> &Arc<DetachedWork> {
        &self.base().detached
    }

    /// Delivers wake-ups to waiters.
    pub(crate) fn notifier(&self) -> &Arc<Notifier> {
        &self.base().notifier
    }

    /// Runs renewals, heartbeats and other periodic tasks.
    pub(crate) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.base().scheduler
    }

    /// The prefix of all keys. In memory it is only used to check that exact names do not contain it.
    pub(crate) fn prefix(&self) -> &str {
        &self.base().prefix
    }

    /// The prefix of the channels that carry wake-ups. Empty in memory.
    pub(crate) fn channels(&self) -> String {
        self.on_redis()
            .map_or_else(String::new, |store| store.channels())
    }

    /// Returns the value that all users of a name share in this process. The first user makes it.
    pub(crate) fn shared<T: Send + Sync + 'static>(
        &self,
        name: &str,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        self.base().names.get(name, make)
    }

    /// The time within which a call ends.
    pub(crate) fn call_limit(&self) -> Duration {
        self.on_redis()
            .map_or(Duration::ZERO, |store| store.call_limit())
    }

    /// How long a call may wait for replicas or the disk. `None`: it does not wait for them.
    pub(crate) fn durable_within(&self) -> Option<Duration> {
        self.on_redis()?
            .limits
            .durability
            .map(|durability| durability.within)
    }

    /// The runtime for work that must not depend on its callers. `None` in memory, where every operation is immediate.
    pub(crate) fn background(&self) -> Option<&Background> {
        self.on_redis().map(|store| &store.base.background)
    }

    /// The runtime for tasks that take time even in memory.
    pub(crate) fn background_for_a_task(&self) -> Background {
        self.base().background.for_a_task()
    }

    /// The pending background operations. `None` in memory, where there are none.
    pub(crate) fn owed(&self) -> Option<&Owed> {
        match &self.0.backend {
            Backend::InMemory(_) => None,
            Backend::Redis(store) => Some(&store.owed),
        }
    }

    /// Counts an outcome that is about to be stored, until the returned guard is dropped. `None` in memory, where
    /// outcomes are stored at once.
    pub(crate) fn publication(&self) -> Option<PendingGuard> {
        self.on_redis().map(|store| store.publications.one())
    }

    /// Starts the subscription to wake-ups, unless it runs already.
    pub(crate) fn subscribe(&self) {
        if let Some(store) = self.on_redis() {
            store.subscribe();
        }
    }
}

/// Writes the kind of the store: `in-memory` or `redis`.
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
