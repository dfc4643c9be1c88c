//! Collects the events and metrics of a test.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tracing::field::{Field, Visit};
use tracing::span;

pub type Event = BTreeMap<String, String>;

/// A tracing subscriber and a metrics recorder. Clones share their state.
#[derive(Clone, Default)]
pub struct Seen(Arc<Everything>);

#[derive(Default)]
struct Everything {
    events: Mutex<Vec<Event>>,
    series: Mutex<BTreeMap<String, Arc<Series>>>,
}

impl Seen {
    pub fn events(&self) -> Vec<Event> {
        self.0.events.lock().unwrap().clone()
    }

    /// Returns the value of each series and the number of its updates, by name and labels in their order. For a
    /// histogram the value is the sum.
    pub fn series_seen(&self) -> BTreeMap<String, (f64, u64)> {
        let series = self.0.series.lock().unwrap();
        let value = |series: &Series| {
            (
                *series.value.lock().unwrap(),
                *series.touched.lock().unwrap(),
            )
        };
        series
            .iter()
            .map(|(name, series)| (name.clone(), value(series)))
            .collect()
    }

    /// Clears all events and metrics so far.
    pub fn forget(&self) {
        self.0.events.lock().unwrap().clear();
        for series in self.0.series.lock().unwrap().values() {
            (
                *series.value.lock().unwrap(),
                *series.touched.lock().unwrap(),
            ) = (0.0, 0);
        }
    }

    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> = key
            .labels()
            .map(|label| (label.key(), label.value()))
            .collect();
        Arc::clone(
            self.0
                .series
                .lock()
                .unwrap()
                .entry(named(key.name(), &labels))
                .or_default(),
        )
    }
}

pub fn named(name: &str, labels: &[(&str, &str)]) -> String {
    let labels: Vec<_> = labels
        .iter()
        .map(|(label, value)| format!("{label}={value}"))
        .collect();
    format!("{name} {}", labels.join(" "))
}

#[derive(Default)]
struct Series {
    value: Mutex<f64>,
    touched: Mutex<u64>,
}

impl Series {
    fn change(&self, change: impl FnOnce(f64) -> f64) {
        let mut value = self.value.lock().unwrap();
        *value = change(*value);
        *self.touched.lock().unwrap() += 1;
    }
}

impl CounterFn for Series {
    fn increment(&self, times: u64) {
        self.change(|value| value + times as f64);
    }

    fn absolute(&self, _: u64) {
        panic!("nothing sets a counter");
    }
}

impl GaugeFn for Series {
    fn increment(&self, change: f64) {
        self.change(|value| value + change);
    }

    fn decrement(&self, change: f64) {
        self.change(|value| value - change);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

impl HistogramFn for Series {
    fn record(&self, sample: f64) {
        assert!(sample.is_finite() && sample >= 0.0, "{sample}");
        self.change(|value| value + sample);
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}

struct Fields<'a>(&'a mut Event);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl tracing::Subscriber for Seen {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tower_distributed")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let metadata = event.metadata();
        let mut fields = Event::from([
            ("target".to_owned(), metadata.target().to_owned()),
            ("level".to_owned(), metadata.level().to_string()),
        ]);
        event.record(&mut Fields(&mut fields));
        self.0.events.lock().unwrap().push(fields);
    }
}
