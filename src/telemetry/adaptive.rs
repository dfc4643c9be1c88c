//! The gauges of a limit that adapts.

use super::names::{ADAPTIVE_IN_FLIGHT, ADAPTIVE_LATENCY, ADAPTIVE_LIMIT};
use crate::telemetry::series::Series;

/// The gauges of the adaptive limits of a namespace.
pub(crate) struct AdaptiveLimit {
    limit: Series,
    in_flight: Series,
    latency: Series,
}

impl AdaptiveLimit {
    pub(crate) fn new(namespace: &str) -> Self {
        let namespace = namespace.into();
        let series = |metric| Series::new(metric, [("namespace", &namespace)]);
        let (limit, in_flight) = (series(&ADAPTIVE_LIMIT), series(&ADAPTIVE_IN_FLIGHT));
        Self {
            limit,
            in_flight,
            latency: series(&ADAPTIVE_LATENCY),
        }
    }

    /// Sets the limit, the permits in flight and the latency (µs) from a reply of the store.
    pub(crate) fn tell(&self, limit: u32, in_flight: i64, latency: i64) {
        self.limit.set(|| limit.into());
        self.in_flight.set(|| in_flight as f64);
        self.latency.set(|| latency as f64 / 1e6);
    }
}

debug!(AdaptiveLimit);
