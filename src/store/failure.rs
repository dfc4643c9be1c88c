//! What to do while the store gives no answer.

use std::num::NonZeroU32;

/// What to do with requests while the store gives no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFailure {
    /// Refuse them, as [`StoreUnavailable`](crate::RefusalKind::StoreUnavailable): nothing goes unlimited.
    #[default]
    FailClosed,
    /// Let them all through, without a decision: [`on_admit`](crate::RateLimitLayer::on_admit) is not called.
    FailOpen,
    /// Limit in this process alone, which gets its share: the rate and the burst (at least 1) divided by the
    /// number of processes. What costs more than that burst is refused as under `FailClosed`.
    LocalShare {
        /// How many processes share the limit.
        replicas: NonZeroU32,
    },
}
