//! All that this process tells and counts.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tracing::field::{Field, Visit};
use tracing::span;

use crate::{KEY, PASSWORD};

pub(crate) type Event = BTreeMap<String, String>;

static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());
static SERIES: Mutex<BTreeMap<String, Arc<Series>>> = Mutex::new(BTreeMap::new());

static LISTENING: LazyLock<()> = LazyLock::new(|| {
    tracing::subscriber::set_global_default(Seen).unwrap();
    metrics::set_global_recorder(Seen).unwrap();
});

/// From here on all is seen, of all threads.
pub(crate) fn listen() {
    LazyLock::force(&LISTENING);
}

/// The events with these fields.
pub(crate) fn events(fields: &[(&str, &str)]) -> Vec<Event> {
    let has = |event: &Event| {
        fields.iter().all(|(field, value)| event.get(*field).is_some_and(|found| found == value))
    };
    EVENTS.lock().unwrap().iter().filter(|event| has(event)).cloned().collect()
}

/// What a series has come to, by its name and its labels in their order; of a histogram, the sum. 0 where it is none.
pub(crate) fn value(name: &str, labels: &[(&str, &str)]) -> f64 {
    let series = SERIES.lock().unwrap().get(&named(name, labels)).cloned();
    series.map_or(0.0, |series| *series.value.lock().unwrap())
}

/// How often a series was touched.
pub(crate) fn touched(name: &str, labels: &[(&str, &str)]) -> u64 {
    let series = SERIES.lock().unwrap().get(&named(name, labels)).cloned();
    series.map_or(0, |series| *series.touched.lock().unwrap())
}

pub(crate) fn decisions(limiter: &str, namespace: &str, outcome: &str) -> f64 {
    let labels = [("limiter", limiter), ("namespace", namespace), ("outcome", outcome)];
    value("tower_distributed_decisions_total", &labels)
}

/// Neither a key nor a password is in anything that was told or counted by any test so far.
pub(crate) fn assert_no_secrets() {
    let events = EVENTS.lock().unwrap();
    for secret in [KEY, PASSWORD] {
        let has = |event: &&Event| event.values().any(|value| value.contains(secret));
        assert_eq!(events.iter().find(has), None);
        let series = SERIES.lock().unwrap();
        assert_eq!(series.keys().find(|name| name.contains(secret)), None);
    }
    for event in events.iter() {
        assert_eq!(event["target"], "tower_distributed", "{event:?}");
        assert!(!event["event"].is_empty() && !event["message"].is_empty(), "{event:?}");
    }
}

fn named(name: &str, labels: &[(&str, &str)]) -> String {
    let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
    format!("{name} {}", labels.join(" "))
}

struct Seen;

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

fn series(key: &Key) -> Arc<Series> {
    let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
    Arc::clone(SERIES.lock().unwrap().entry(named(key.name(), &labels)).or_default())
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(series(key))
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
        EVENTS.lock().unwrap().push(fields);
    }
}
