//! One series of a metric. Its name and labels are prepared, so a use formats and allocates nothing.
//!
//! Each use looks up the recorder and keeps no handle. So a recorder that is installed later, or for one thread,
//! gets all values from then on.

use std::sync::Arc;

use crate::telemetry::names::Metric;

#[derive(Clone, Debug)]
pub(super) struct Series {
    #[cfg(feature = "metrics")]
    key: metrics::Key,
}

#[cfg(feature = "metrics")]
static METADATA: metrics::Metadata<'static> = metrics::Metadata::new(
    "tower_distributed",
    metrics::Level::INFO,
    Some("tower_distributed"),
);

impl Series {
    #[cfg(feature = "metrics")]
    pub(super) fn new<const N: usize>(
        metric: &Metric,
        labels: [(&'static str, &Arc<str>); N],
    ) -> Self {
        debug_assert!(
            labels
                .iter()
                .all(|(label, _)| metric.labels.contains(label)),
            "{metric:?}"
        );
        let labels = labels.map(|(label, value)| metrics::Label::new(label, Arc::clone(value)));
        Self {
            key: metrics::Key::from_parts(metric.name, labels.to_vec()),
        }
    }

    #[cfg(not(feature = "metrics"))]
    pub(super) fn new<const N: usize>(_: &Metric, _: [(&'static str, &Arc<str>); N]) -> Self {
        Self {}
    }

    /// Increments a counter.
    pub(super) fn count(&self, times: u64) {
        #[cfg(feature = "metrics")]
        metrics::with_recorder(|recorder| recorder.register_counter(&self.key, &METADATA))
            .increment(times);
        let _ = times;
    }

    /// Adds to a gauge.
    pub(super) fn add(&self, change: f64) {
        #[cfg(feature = "metrics")]
        metrics::with_recorder(|recorder| recorder.register_gauge(&self.key, &METADATA))
            .increment(change);
        let _ = change;
    }

    /// Sets a gauge. Without the feature `metrics` the value is not computed.
    pub(super) fn set(&self, value: impl FnOnce() -> f64) {
        #[cfg(feature = "metrics")]
        metrics::with_recorder(|recorder| recorder.register_gauge(&self.key, &METADATA))
            .set(value());
        #[cfg(not(feature = "metrics"))]
        drop(value);
    }

    /// Records a value in a histogram. Without the feature `metrics` the value is not computed.
    pub(super) fn record(&self, value: impl FnOnce() -> f64) {
        #[cfg(feature = "metrics")]
        metrics::with_recorder(|recorder| recorder.register_histogram(&self.key, &METADATA))
            .record(value());
        #[cfg(not(feature = "metrics"))]
        drop(value);
    }
}
