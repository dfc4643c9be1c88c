//! One series of a metric. Its name and labels are prepared, so that a use does not format or allocate.
//!
//! Each use looks up the recorder and keeps no handle. So a recorder that is installed later, or for one thread, gets
//! all values from then on.

use std::sync::Arc;

#[cfg(feature = "metrics")]
use metrics::Unit;

#[cfg(feature = "metrics")]
use crate::telemetry::names::METRICS;
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

/// Tells the recorder of this thread what each metric is.
#[cfg(feature = "metrics")]
pub(super) fn describe() {
    for metric in METRICS {
        let unit = match metric.unit {
            "seconds" => Unit::Seconds,
            _ => Unit::Count,
        };
        let name = metric.name.into();
        let help = metric.help.into();
        metrics::with_recorder(|recorder| match metric.kind {
            "counter" => recorder.describe_counter(name, Some(unit), help),
            "gauge" => recorder.describe_gauge(name, Some(unit), help),
            _ => recorder.describe_histogram(name, Some(unit), help),
        });
    }
}

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
