//! What is counted of a namespace: frequent events, decisions, leases, and gauges.

use std::fmt;
use std::sync::Arc;

use super::names::{
    ADAPTIVE_IN_FLIGHT, ADAPTIVE_LATENCY, ADAPTIVE_LIMIT, DECISIONS, Event, FILTER_FILL,
    LEASES_HELD, LEASES_LOST, LEASES_RENEWED, Outcome,
};
use crate::error::Error;
use crate::telemetry::emit::{Fields, Series, emit, series as event_series};
use crate::telemetry::throttle::Throttle;

/// Counts every occurrence, and emits at most one event a second.
pub(crate) struct Throttled {
    event: Event,
    namespace: Arc<str>,
    throttle: Throttle,
    counted: Series,
}

impl Throttled {
    pub(crate) fn new(namespace: &str, event: Event) -> Self {
        let namespace: Arc<str> = namespace.into();
        let counted = event_series(event, "namespace", &namespace);
        Self {
            event,
            namespace,
            throttle: Throttle::new(),
            counted,
        }
    }

    pub(crate) fn tell(&self, detail: impl fmt::Display) {
        self.counted.count(1);
        if let Some(count) = self.throttle.note(1) {
            let fields = Fields {
                namespace: Some(&self.namespace),
                count: Some(count),
                ..Fields::default()
            };
            emit(self.event, fields, format_args!("{detail}"));
        }
    }
}

static DEGRADED: Throttle = Throttle::new();

/// Counts the decisions of a primitive and its layers in a namespace, never by key. `None` if telemetry is off. Cheap
/// to clone.
#[derive(Clone)]
pub(crate) struct Decisions(Option<Arc<OfNamespace>>);

struct OfNamespace {
    limiter: &'static str,
    namespace: Arc<str>,
    /// In the order of [`Outcome::ALL`].
    outcomes: Vec<Series>,
    degraded: Series,
    extension_missing: Throttled,
}

impl Decisions {
    pub(crate) fn new(limiter: &'static str, namespace: &str) -> Self {
        if !super::IS_ON {
            return Self(None);
        }
        let label: Arc<str> = limiter.into();
        let namespace: Arc<str> = namespace.into();
        let outcome = |outcome: &Outcome| {
            let outcome = outcome.name().into();
            Series::new(
                &DECISIONS,
                [
                    ("limiter", &label),
                    ("namespace", &namespace),
                    ("outcome", &outcome),
                ],
            )
        };
        Self(Some(Arc::new(OfNamespace {
            limiter,
            outcomes: Outcome::ALL.iter().map(outcome).collect(),
            degraded: event_series(Event::Degraded, "namespace", &namespace),
            extension_missing: Throttled::new(&namespace, Event::ExtensionMissing),
            namespace,
        })))
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        let Some(inner) = &self.0 else { return };
        if let Some(series) = inner.outcomes.get(outcome as usize) {
            series.count(1);
        }
        if matches!(outcome, Outcome::FailedOpen | Outcome::LocalShare) {
            inner.degraded(outcome);
        }
    }

    /// Counts the outcome of a request and returns its result.
    pub(crate) fn settle<T>(&self, settled: Result<(T, Outcome), Error>) -> Result<T, Error> {
        match settled {
            Ok((granted, outcome)) => {
                self.count(outcome);
                Ok(granted)
            }
            Err(error) => {
                self.count(Outcome::of_error(&error));
                Err(error)
            }
        }
    }

    /// Like [`settle`](Self::settle), for a request that is either admitted or fails.
    pub(crate) fn admitted<T>(&self, granted: Result<T, Error>) -> Result<T, Error> {
        self.settle(granted.map(|granted| (granted, Outcome::Admitted)))
    }

    /// Counts a request if its key could not be extracted.
    pub(crate) fn extracted<T>(&self, key: Result<T, Error>) -> Result<T, Error> {
        key.inspect_err(|error| {
            self.count(Outcome::of_error(error));
            self.tell_unextracted(error);
        })
    }

    /// Reports a key that could not be extracted, if a layer that inserts an extension is missing.
    pub(crate) fn tell_unextracted(&self, error: &Error) {
        if let Some(inner) = self.0.as_ref().filter(|_| error.is_no_extension()) {
            inner.extension_missing.tell(error);
        }
    }
}

impl OfNamespace {
    #[cold]
    fn degraded(&self, outcome: Outcome) {
        self.degraded.count(1);
        if let Some(count) = DEGRADED.note(1) {
            let Self {
                limiter, namespace, ..
            } = self;
            let fields = Fields {
                namespace: Some(namespace),
                limiter: Some(limiter),
                count: Some(count),
                ..Fields::default()
            };
            let how = if outcome == Outcome::FailedOpen {
                "without a decision"
            } else {
                "by the local share"
            };
            let text = format_args!(
                "the store failed: {count} requests of this process were admitted {how}"
            );
            emit(Event::Degraded, fields, text);
        }
    }
}

// Omits the series, because there are many.
debug!(Decisions);

static LOST: Throttle = Throttle::new();

/// Counts the start, the renewals, the loss and the end of the leases of one kind in a namespace. `None` if telemetry
/// is off. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Leases(Option<Arc<OfLeases>>);

struct OfLeases {
    namespace: Arc<str>,
    /// `None` for kinds whose loss is reported as another event.
    lost_event: Option<Series>,
    held: Series,
    lost: Series,
    renewed: Series,
    /// `None` for kinds whose leases hold no bodies.
    #[cfg(feature = "http")]
    outlived: Option<Throttled>,
}

impl Leases {
    pub(crate) fn new(kind: &'static str, namespace: &str) -> Self {
        if !super::IS_ON {
            return Self(None);
        }
        let kind: Arc<str> = kind.into();
        let namespace: Arc<str> = namespace.into();
        let series = |metric| Series::new(metric, [("kind", &kind), ("namespace", &namespace)]);
        let held = series(&LEASES_HELD);
        let lost = series(&LEASES_LOST);
        let renewed = series(&LEASES_RENEWED);
        let emits = !matches!(&*kind, "flight" | "claim");
        let lost_event = emits.then(|| event_series(Event::LeaseLost, "namespace", &namespace));
        #[cfg(feature = "http")]
        let outlived = emits.then(|| Throttled::new(&namespace, Event::BodyOutlivedLease));
        Self(Some(Arc::new(OfLeases {
            namespace,
            lost_event,
            held,
            lost,
            renewed,
            #[cfg(feature = "http")]
            outlived,
        })))
    }

    pub(crate) fn began(&self) {
        if let Some(leases) = &self.0 {
            leases.held.add(1.0);
        }
    }

    pub(crate) fn ended(&self) {
        if let Some(leases) = &self.0 {
            leases.held.add(-1.0);
        }
    }

    pub(crate) fn renewed(&self) {
        if let Some(leases) = &self.0 {
            leases.renewed.count(1);
        }
    }

    pub(crate) fn lost(&self) {
        let Some(leases) = &self.0 else { return };
        leases.lost.count(1);
        let Some(event) = &leases.lost_event else {
            return;
        };
        event.count(1);
        if let Some(count) = LOST.note(1) {
            let fields = Fields {
                namespace: Some(&leases.namespace),
                count: Some(count),
                ..Fields::default()
            };
            let text = "a lease ended before it was released: it was not renewed in time, was held for longer than \
                        max_hold, or the store lost it";
            emit(Event::LeaseLost, fields, format_args!("{text}"));
        }
    }

    /// A response body continues without its lease.
    #[cfg(feature = "http")]
    pub(crate) fn outlived(&self, why: &Error) {
        if let Some(leases) = &self.0
            && let Some(outlived) = &leases.outlived
        {
            outlived.tell(format_args!(
                "{why}: its lease is released, and the body goes on"
            ));
        }
    }
}

// Omits the series, because there are many.
debug!(Leases);

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
        Self {
            limit: series(&ADAPTIVE_LIMIT),
            in_flight: series(&ADAPTIVE_IN_FLIGHT),
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
