//! The gauge of the fill level of a filter.

use super::names::FILTER_FILL;
use crate::telemetry::series::Series;

/// The fill gauge of a filter.
pub(crate) struct Fill(Series);

impl Fill {
    pub(crate) fn new(namespace: &str) -> Self {
        Self(Series::new(
            &FILTER_FILL,
            [("namespace", &namespace.into())],
        ))
    }

    /// Sets the fill level. 1: the filter holds its capacity.
    pub(crate) fn set(&self, fill: f64) {
        self.0.set(|| fill);
    }
}

debug!(Fill);
