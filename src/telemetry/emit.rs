//! Events, emitted by `tracing` and counted by `metrics`, and the series of metrics.
//!
//! Each use of a series looks up the recorder and keeps no handle. So a recorder that is installed later, or for one
//! thread, gets all values from then on.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

#[cfg(feature = "metrics")]
use metrics::Unit;

#[cfg(feature = "metrics")]
use super::names::METRICS;
use super::names::{EVENTS, Event, Metric};
use crate::error::Error;
use crate::telemetry::throttle::Throttle;

/// The fields of an event besides its name and its text. A field that is `None` is omitted.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub(super) struct Fields<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) server: Option<&'a str>,
    pub(super) limiter: Option<&'a str>,
    /// How many times it happened since the previous event of this kind.
    pub(super) count: Option<u64>,
    /// How long it took.
    pub(super) seconds: Option<f64>,
}

/// Emits and counts an event in a namespace.
pub(crate) fn tell(namespace: &str, event: Event, detail: impl fmt::Display) {
    if !super::IS_ON {
        return;
    }
    emit(
        event,
        Fields {
            namespace: Some(namespace),
            ..Fields::default()
        },
        format_args!("{detail}"),
    );
    series(event, "namespace", &namespace.into()).count(1);
}

/// The number of throttles for the texts of misconfigured layers. Texts with the same throttle share one event a
/// second.
const TEXTS: usize = 64;

/// Reports that a layer or its primitive is misconfigured, if this is why a request was refused: at most once a second
/// for each text, which names the remedy. A missing extension has a separate event.
#[cold]
pub(crate) fn tell_invalid(error: &Error) {
    const LAYERS: &str = "layers";
    static THROTTLES: [Throttle; TEXTS] = [const { Throttle::new() }; TEXTS];
    if !super::IS_ON || error.is_no_extension() {
        return;
    }
    series(Event::Misconfigured, "namespace", &LAYERS.into()).count(1);
    let text = error.to_string();
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    if let Some(count) = THROTTLES[hasher.finish() as usize % TEXTS].note(1) {
        let fields = Fields {
            namespace: Some(LAYERS),
            count: Some(count),
            ..Fields::default()
        };
        emit(Event::Misconfigured, fields, format_args!("{text}"));
    }
}

/// The counter for an event in a namespace or of a server.
pub(super) fn series(event: Event, label: &'static str, value: &Arc<str>) -> Series {
    Series::new(&EVENTS, [(label, value), ("event", &event.name().into())])
}

#[cfg(feature = "tracing")]
pub(super) fn emit(event: Event, fields: Fields<'_>, detail: fmt::Arguments<'_>) {
    let Fields {
        namespace,
        server,
        limiter,
        count,
        seconds,
    } = fields;
    macro_rules! at {
        ($level:ident) => {
            tracing::event!(
                target: super::names::TARGET,
                tracing::Level::$level,
                namespace,
                server,
                limiter,
                count,
                seconds,
                event = event.name(),
                "{detail}"
            )
        };
    }
    match event {
        Event::OutageEnded
        | Event::Reconnected
        | Event::SubscriptionBack
        | Event::FunctionsMissing
        | Event::SettingChanged => at!(INFO),
        Event::Misconfigured => at!(ERROR),
        Event::BreakerOpened | Event::BreakerHalfOpen | Event::BreakerClosed => at!(DEBUG),
        _ => at!(WARN),
    }
}

#[cfg(not(feature = "tracing"))]
pub(super) fn emit(_: Event, _: Fields<'_>, _: fmt::Arguments<'_>) {}

/// One series of a metric. Its name and labels are prepared, so that a use does not format or allocate.
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
