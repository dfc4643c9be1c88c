//! Where state lives: [`Store`]. Knows no primitive by name.

pub(crate) mod background;
mod builder;
mod failure;
mod in_memory;
mod key;
mod names;
mod namespace;
mod notifier;
mod operation;
mod owed;
mod ping;
mod redis;
mod scheduler;
pub(crate) mod timer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

pub use self::builder::{IntoPool, StoreBuilder};
pub use self::failure::StoreFailure;
pub(crate) use self::in_memory::{Cells, Clock, lock};
pub use self::key::Key;
pub(crate) use self::key::{check_exact, check_name, parts};
pub(crate) use self::namespace::{Client, Namespace, OperationFuture};
pub(crate) use self::notifier::{
    ALL, Ids, Link, Listener, News, Notifier, Push, Recipient, id_of, process_of, ttl_of,
};
pub(crate) use self::operation::{Arguments, Cell, Field, Fields, Garbled, Never, Operation, Script, script};
pub(crate) use self::owed::Owed;
pub use self::ping::{BreakerState, Ping};
pub(crate) use self::redis::send_queue::Padded;
#[cfg(test)]
pub(crate) use self::redis::source::Source;
pub(crate) use self::scheduler::{PeriodicTask, Scheduler};

use self::background::Background;
use self::in_memory::InMemory;
use self::redis::RedisStore;
use crate::Error;
use crate::error::Cause;

/// Where the state of limits lives: in Redis, or in this process.
///
/// A cheap clone; clones share connections and, in process, the state.
///
/// # On Redis
///
/// No call checks a connection out of the pool. A store keeps [`connections`](StoreBuilder::connections) of its own on
/// each runtime that uses it, shared by all calls there, replaced when they fail and closed when the runtime ends. Calls
/// that are made while others are in flight leave together as one script call, so a hot key costs Redis little more than
/// an idle one. Every call ends within [a time that the builder sets](StoreBuilder#how-long-a-call-can-take); after three
/// failures in a row, or where no connection can be made, a breaker answers at once, and lets a call through now and then
/// (25 ms after it opened, up to 1 s later if that fails) to see whether the server is back.
///
/// A call depends on nothing but the runtime it is awaited on. Renewals, releases after a drop, and whatever else must not
/// depend on a caller run on [a thread of the crate's own](StoreBuilder::background), which also serves callers outside of
/// any runtime.
///
/// # Overload
///
/// What one process may ask of Redis at once is [bounded](StoreBuilder::max_queued). Beyond, a call
/// [is overloaded](Error::is_overloaded) and refused at once: this is no outage, and no layer lets a request pass for it.
///
/// # Forks
///
/// A child that a process forks must make stores of its own. Those of its parent give errors there, and never send
/// anything on the parent's connections; what the parent's runtime had begun to write is out of this crate's reach.
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
/// On a Cluster each master has a queue and a breaker of its own, so that one that is away or slow concerns its own keys
/// alone. Which master has a key is asked by `CLUSTER SLOTS`; where ACLs forbid that, all masters share one of each.
///
/// It takes Redis 6.2 or later, and where ACLs are in force the commands `EVALSHA`, `EVAL`, `TIME`, `GET`, `MGET`,
/// `SET` and `DEL` on `prefix:*` (and `INFO`, to check the version). Several limits at once also take `EXISTS`. Leases also
/// take `EXISTS`, `PEXPIRE`, `PTTL`, `SETRANGE`, `PUBLISH`, `SUBSCRIBE`, `PING`, the commands of lists and sorted sets, and
/// the channels `prefix:wake:*`.
/// Bloom filters also take `BITCOUNT`, `BITFIELD`, `BITFIELD_RO`, `EXISTS`, `PEXPIRE`, `SETRANGE`, `STRLEN` and `UNLINK`.
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
    /// Time is tokio's. A test may pause and advance it; pause it before the first lease is taken, so that leases are renewed
    /// by the paused clock.
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

    /// Settings of a store on Redis: prefix, time-outs, bounds, connections.
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }

    pub(crate) fn with_clock(clock: Clock) -> Self {
        Self(Arc::new(Backend::InMemory(InMemory::new(clock, None))))
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

    /// Asks the server for a sign of life: for readiness probes. In memory it is always there.
    ///
    /// It is sent whether or not the breaker is open, and closes it where it is answered. Use it for readiness (may this
    /// process get requests?), not for liveness: restarting this process does not bring Redis back. The gateway example
    /// answers `/readyz` by it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = tower_distributed::Store::in_memory();
    /// let ping = store.ping().await?;
    /// assert_eq!(ping.breaker(), tower_distributed::BreakerState::Closed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) where there is no answer within the
    /// [connect time-out](StoreBuilder::connect_timeout) and the [time-out](StoreBuilder::timeout).
    pub async fn ping(&self) -> Result<Ping, Error> {
        let Backend::Redis(store) = self.backend() else {
            return Ok(Ping::new(Duration::ZERO, None, BreakerState::Closed));
        };
        if let Ok(runtime) = Handle::try_current() {
            return store.ping(&runtime).await;
        }
        let (runtime, store) = (store.background.handle()?, Arc::clone(store));
        let there = runtime.clone();
        let pinged = runtime.spawn(async move { store.ping(&there).await });
        pinged
            .await
            .unwrap_or_else(|_| Err(Error::unavailable(Cause::NotSent, "the store's own thread has ended")))
    }

    /// Waits until what this store owes is done, such as releases after drops, and closes its connections: for a clean end
    /// of the process.
    ///
    /// Drop guards, permits and claims first: what is held is not given back. Calls that come later connect anew.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = tower_distributed::Store::in_memory();
    /// store.shutdown(std::time::Duration::from_secs(5)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) where it is not done within `limit`; the text says how much is left.
    pub async fn shutdown(&self, limit: Duration) -> Result<(), Error> {
        let Backend::Redis(store) = self.backend() else { return Ok(()) };
        let (store, runtime) = (Arc::clone(store), store.background.handle()?);
        // On the store's own thread, since there may be no runtime here.
        match runtime.spawn(async move { store.shutdown(limit).await }).await {
            Ok(Err(left)) => {
                let text =
                    format!("{left} releases and other owed operations were not done within {limit:?}");
                Err(Error::unavailable(Cause::TimedOut, text))
            }
            Ok(Ok(())) => Ok(()),
            Err(_) => Err(Error::unavailable(Cause::NotSent, "the store's own thread has ended")),
        }
    }

    /// What wakes those who wait.
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

    /// What all names begin with; in memory, what they would.
    pub(crate) fn prefix(&self) -> &str {
        match self.backend() {
            Backend::InMemory(_) => builder::PREFIX,
            Backend::Redis(store) => &store.prefix,
        }
    }

    /// What the names of the channels begin with that processes are woken by.
    pub(crate) fn channels(&self) -> String {
        match self.backend() {
            Backend::InMemory(_) => String::new(),
            Backend::Redis(store) => store.channels(),
        }
    }

    /// What all values of one name share in this process, made for the first of them.
    pub(crate) fn shared<T: Send + Sync + 'static>(
        &self,
        name: &str,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let shared = match self.backend() {
            Backend::InMemory(store) => &store.names,
            Backend::Redis(store) => &store.names,
        };
        shared.get(name, make)
    }

    /// Within what time a call has come to an end.
    pub(crate) fn call_limit(&self) -> Duration {
        match self.backend() {
            Backend::InMemory(_) => Duration::ZERO,
            Backend::Redis(store) => store.call_limit(),
        }
    }

    /// Where what must not depend on its callers runs; `None` in memory, where nothing takes time.
    pub(crate) fn background(&self) -> Option<&Background> {
        match self.backend() {
            Backend::InMemory(_) => None,
            Backend::Redis(store) => Some(&store.background),
        }
    }

    /// What this store owes; `None` in memory, where nothing is.
    pub(crate) fn owed(&self) -> Option<&Owed> {
        match self.backend() {
            Backend::InMemory(_) => None,
            Backend::Redis(store) => Some(&store.owed),
        }
    }

    /// Sees to it that pushes arrive, from now or soon.
    pub(crate) fn subscribe(&self) {
        if let Backend::Redis(store) = self.backend() {
            store.subscribe();
        }
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
