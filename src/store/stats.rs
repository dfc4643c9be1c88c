//! What a store does at the moment: [`StoreStats`].

use super::BreakerState;

/// What a store does at the moment, and has done. See [`Store::stats`](crate::Store::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    pub(in crate::store) breaker: BreakerState,
    pub(in crate::store) queued: u64,
    pub(in crate::store) operations: u64,
    pub(in crate::store) batches: u64,
}

impl StoreStats {
    /// Returns the state of the breaker on the runtime of the caller; on a Cluster the worst state of all masters.
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        self.breaker
    }

    /// Returns how many operations wait now to be sent, in all runtimes. The bound is
    /// [`max_queued`](crate::StoreBuilder::max_queued) for each runtime.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Returns how many operations have left the queue since the store was built. They count also if the server was away,
    /// and if an open breaker kept them from being sent.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Returns in how many batches they have left. A batch is sent at once; on a Cluster as a call for each slot.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches
    }
}
