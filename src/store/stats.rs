//! The result of [`Store::stats`](crate::Store::stats).

/// The current state and the counters of a store. See [`Store::stats`](crate::Store::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// The state of the breaker on the runtime of the caller; on a Cluster the worst state of all masters. Outside of
    /// any runtime, the state on the background thread.
    pub breaker: BreakerState,
    /// The version of the server to which the runtime of the caller is connected, such as `7.0.15`: of Redis, or of
    /// Valkey. `None` in memory, without a connection, and if the server does not report it.
    pub server_version: Option<String>,
    /// Whether the calls of this runtime are sent as functions ([`functions`](crate::StoreBuilder::functions)), or as
    /// scripts. `None` in memory and without a connection.
    pub functions: Option<bool>,
    /// The number of operations that are waiting to be sent, in all runtimes. The bound is
    /// [`max_queued`](crate::StoreBuilder::max_queued) for each runtime.
    pub queued: u64,
    /// The number of operations that have left the queue since the store was built. It includes operations that failed
    /// because the server was down or the breaker was open.
    pub operations: u64,
    /// The number of batches of these operations. A batch is sent at once; on a Cluster as a call for each slot.
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
