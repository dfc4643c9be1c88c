//! The state of an entry: [`State`].

use std::time::Duration;

use crate::adaptive::look::AdaptiveState;
use crate::bloom_filter::look::FilterState;
use crate::bucket::decision::BucketState;
use crate::fleet::version::SettingVersion;
use crate::lease::look::Snapshot;
use crate::refused_keys::RefusedKey;
use crate::single_flight::answer::StoredAnswer;

/// The state of an entry.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum State {
    /// A bucket, under the quotas that are stored with it. They have no names.
    Bucket(BucketState),
    /// The holders and waiters of permits, a lock or a claim.
    Leases(Snapshot),
    /// Permits whose limit [adapts](crate::ConcurrencyLimitLayer::adaptive).
    Permits(PermitState),
    /// A single flight.
    Flight(FlightState),
    /// A filter.
    Filter(FilterState),
    /// The handled items of a `Dedupe`.
    Dedupe(DedupeState),
    /// The last versions of a setting of the fleet, the newest first.
    Setting(Vec<SettingVersion>),
    /// The keys that a process has refused most, sorted by the lower bounds of their counts.
    Refused(Vec<RefusedKey>),
}

impl State {
    /// Returns the holders and waiters, if the state can have any.
    #[must_use]
    pub fn leases(&self) -> Option<&Snapshot> {
        match self {
            Self::Leases(leases) => Some(leases),
            Self::Permits(permits) => Some(&permits.leases),
            Self::Flight(flight) => Some(&flight.runs),
            Self::Bucket(_)
            | Self::Filter(_)
            | Self::Dedupe(_)
            | Self::Setting(_)
            | Self::Refused(_) => None,
        }
    }
}

/// Permits whose limit adapts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitState {
    /// The holders and waiters. There may be none.
    pub leases: Snapshot,
    /// The limit, and the measurements of its last window.
    pub limit: AdaptiveState,
}

/// The state of a single flight.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlightState {
    /// The leader of a run that is in progress, as the only holder, and the number of processes that wait for its
    /// answer.
    pub runs: Snapshot,
    /// The state of the stored answer.
    pub answer: Option<StoredAnswer>,
}

/// The state of the handled items of an exact `Dedupe`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DedupeState {
    /// The number of items that the `Dedupe` is sized for. It is at least the
    /// [capacity](crate::dedupe::ExactBuilder::capacity) that was set.
    pub capacity: u64,
    /// The minimum time for which an item is remembered.
    pub remember_for: Duration,
    /// Whether the item of the entry was handled; `None` for the entry of the whole namespace.
    pub is_handled: Option<bool>,
}
