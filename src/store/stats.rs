//! What a store does at the moment: [`StoreStats`], and a ping to its server.

use std::time::Duration;

use tokio::runtime::Handle;

use super::Store;
use crate::Error;

/// What a store does at the moment, and has done. See [`Store::stats`](crate::Store::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// The state of the breaker on the runtime of the caller; on a Cluster the worst state of all masters. Outside of any
    /// runtime it is that of the background thread.
    pub breaker: BreakerState,
    /// The version of the server to which the runtime of the caller is connected, such as `7.0.15`: of Redis, or of Valkey.
    /// `None` in memory, without a connection, and if the server does not report it.
    pub server_version: Option<String>,
    /// Whether the calls of this runtime are calls of functions ([`functions`](crate::StoreBuilder::functions)), or scripts.
    /// `None` in memory and without a connection.
    pub functions: Option<bool>,
    /// How many operations wait now to be sent, in all runtimes. The bound is
    /// [`max_queued`](crate::StoreBuilder::max_queued) for each runtime.
    pub queued: u64,
    /// How many operations have left the queue since the store was built. They count also if the server was away, and if an
    /// open breaker kept them from being sent.
    pub operations: u64,
    /// In how many batches they have left. A batch is sent at once; on a Cluster as a call for each slot.
    pub batches: u64,
}

/// The state of a store's circuit breaker on the runtime of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// All calls are sent.
    #[default]
    Closed,
    /// The next call, or one that is in flight, is a probe.
    HalfOpen,
    /// Calls fail at once, as [unavailable](crate::Error::is_unavailable).
    Open,
}

impl Store {
    /// Sends a `PING` to the server, for readiness probes, and returns how long the server took to answer. In memory it
    /// always succeeds, in no time.
    ///
    /// The ping is sent even while the breaker is open, and an answer closes the breaker, except on a Cluster. Use it
    /// for readiness (may this process get requests?), not for liveness: a restart of this process does not bring
    /// Redis back. The gateway example answers `/readyz` with it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = tower_distributed::Store::in_memory();
    /// let took = store.ping().await?;
    /// println!("{} answered in {took:?}", store.stats().server_version.as_deref().unwrap_or("memory"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if there is no answer within the [connect
    /// timeout](crate::StoreBuilder::connect_timeout) and the [timeout](crate::StoreBuilder::timeout).
    pub async fn ping(&self) -> Result<Duration, Error> {
        let Some(store) = self.on_redis() else {
            return Ok(Duration::ZERO);
        };
        store
            .anywhere(|store, runtime| async move { store.ping(&runtime).await })
            .await?
    }

    /// Returns what the store does at the moment, for a status page. Asks no server. All zero in memory.
    ///
    /// The feature `metrics` reports the same and more, over time.
    ///
    /// ```
    /// let stats = tower_distributed::Store::in_memory().stats();
    /// assert_eq!(stats.breaker, tower_distributed::BreakerState::Closed);
    /// println!("{} wait; {} in {} batches so far", stats.queued, stats.operations, stats.batches);
    /// ```
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let Some(store) = self.on_redis() else {
            return StoreStats::default();
        };
        let runtime = Handle::try_current()
            .ok()
            .or_else(|| store.base.background.handle().ok());
        store.stats(runtime.map(|runtime| runtime.id()))
    }
}
