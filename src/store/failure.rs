//! What layers do while the store is unavailable: [`StoreFailure`].

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::in_memory::{Clock, InMemory};
use super::{Backend, Store};

/// What a layer does with requests while the store is unavailable.
///
/// A [picture](crate::guide::pictures#an-outage) shows the three policies in an outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFailure {
    /// Refuse every request, as [`StoreUnavailable`](crate::RefusalKind::StoreUnavailable).
    #[default]
    FailClosed,
    /// Admit every request without a decision. [`on_admit`](crate::RateLimitLayer::on_admit) is not called.
    FailOpen,
    /// Limit in this process alone.
    ///
    /// A rate limit divides the rate and the burst by `replicas`, a concurrency limit divides the limit. The burst
    /// and the limit are at least 1. A request that costs or weighs more than its share is refused as under
    /// `FailClosed`. A mutex and a deduplication use the memory of this process; for them `replicas` has no effect.
    ///
    /// The share belongs to the [`Store`](crate::Store) and its clones, not to the layer: layers whose primitives have
    /// the same kind and name share it, as they share the state in Redis. So use one `Store` in a process. If such layers
    /// have different `replicas`, the largest counts for all of them: together they never admit more than the smallest
    /// share. The other settings of a primitive, such as its ttl and `max_waiters`, hold as in Redis. A single flight runs
    /// the work once for each `SingleFlight` and its clones.
    ///
    /// The share begins empty with the first outage. It does not know the leases and claims that were granted by the
    /// store before, and the store does not know those of the share when it is back: for this time, a request of each
    /// kind can be handled at once. Fencing tokens are those of the clock of this process.
    LocalShare {
        /// The number of processes that share the limit.
        replicas: NonZeroU32,
    },
}

impl Store {
    /// The memory of this process that replaces the store while it is unavailable, see [`StoreFailure::LocalShare`]. All
    /// clones of the store share it.
    pub(crate) fn local_share(&self) -> &Self {
        self.base().local_share.get_or_init(|| {
            let mut memory = InMemory::new(Clock::system(), None);
            memory.base.prefix = self.prefix().to_owned();
            Self(Arc::new(Backend::InMemory(memory)))
        })
    }
}

/// The number of processes that share a limit while the store is unavailable: the largest that a layer has named.
#[derive(Clone, Debug)]
pub(crate) struct Replicas(Arc<Most>);

#[derive(Debug)]
struct Most(AtomicU32);

impl Replicas {
    /// `limit`: the kind and the name of the primitive in the local share.
    pub(crate) fn of(local_share: &Store, limit: &str, replicas: NonZeroU32) -> Self {
        let most = local_share.shared(limit, || Arc::new(Most(AtomicU32::new(0))));
        most.0.fetch_max(replicas.get(), Ordering::Relaxed);
        Self(most)
    }

    pub(crate) fn most(&self) -> NonZeroU32 {
        NonZeroU32::new(self.0.0.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }
}
