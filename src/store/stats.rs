//! What [`Store::stats`](crate::Store::stats) reports of a store.

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
