//! How many operations leave in one batch: two metrics of the crate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use serde_json::{Value, json};

static OPERATIONS: AtomicU64 = AtomicU64::new(0);
static BATCHES: AtomicU64 = AtomicU64::new(0);

/// Installs the recorder of this process. A service uses one that exports all metrics, such as that of Prometheus.
pub(super) fn collect() {
    if metrics::set_global_recorder(Batches).is_err() {
        eprintln!("another recorder of metrics is installed: no batches on the page");
    }
}

/// Both numbers since the start. In memory there are no batches.
pub(super) fn state() -> Value {
    let (operations, batches) = (OPERATIONS.load(Ordering::Relaxed), BATCHES.load(Ordering::Relaxed));
    json!({ "operations": operations, "batches": batches })
}

struct Batches;

impl HistogramFn for Batches {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of operations")]
    fn record(&self, operations: f64) {
        OPERATIONS.fetch_add(operations as u64, Ordering::Relaxed);
        BATCHES.fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for Batches {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match key.name() {
            "tower_distributed_batch_operations" => Histogram::from_arc(Arc::new(Batches)),
            _ => Histogram::noop(),
        }
    }
}
