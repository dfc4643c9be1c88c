//! A sign of life of a store: [`Ping`].

use std::time::Duration;

/// What a store answered to [`Store::ping`](crate::Store::ping).
#[derive(Clone, Debug)]
pub struct Ping {
    round_trip: Duration,
    server_version: Option<String>,
    breaker: BreakerState,
}

/// The state of a store's circuit breaker, on the runtime that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls are made.
    #[default]
    Closed,
    /// The next call is made, as a probe.
    HalfOpen,
    /// Calls are answered at once, as [unavailable](crate::Error::is_unavailable).
    Open,
}

impl Ping {
    pub(crate) fn new(round_trip: Duration, server_version: Option<String>, breaker: BreakerState) -> Self {
        Self { round_trip, server_version, breaker }
    }

    /// How long the server took to answer; zero in memory.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// The version of the server, such as `7.0.15`; `None` in memory, and where the server does not tell.
    #[must_use]
    pub fn server_version(&self) -> Option<&str> {
        self.server_version.as_deref()
    }

    /// The state of the breaker before the ping; on a Cluster the worst of its masters'. A ping that is answered closes
    /// it.
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        self.breaker
    }
}
