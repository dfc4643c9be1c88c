//! What layers do while the store is unavailable: [`StoreFailure`].

use std::num::NonZeroU32;

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
    LocalShare {
        /// The number of processes that share the limit.
        replicas: NonZeroU32,
    },
}
