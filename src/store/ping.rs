//! The answer to a ping: [`Ping`].

use std::time::Duration;

/// The answer of a store to [`Store::ping`](crate::Store::ping), which has an example.
#[derive(Clone, Debug)]
pub struct Ping {
    round_trip: Duration,
    server_version: Option<String>,
    breaker: BreakerState,
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

impl Ping {
    pub(crate) fn new(round_trip: Duration, server_version: Option<String>, breaker: BreakerState) -> Self {
        Self { round_trip, server_version, breaker }
    }

    /// Returns how long the server took to answer. Zero in memory.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Returns the version of the server, such as `7.0.15`: of Redis, or of Valkey. `None` in memory, and if the
    /// server does not report it.
    #[must_use]
    pub fn server_version(&self) -> Option<&str> {
        self.server_version.as_deref()
    }

    /// Returns the state of the breaker before the ping; on a Cluster the worst state of all masters. An answered
    /// ping closes the breaker, except on a Cluster.
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        self.breaker
    }
}
