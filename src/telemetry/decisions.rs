//! Counters of the decisions of a limiter.

use std::sync::Arc;

use super::names::{DECISIONS, Event, Outcome};
use crate::error::Error;
use crate::telemetry::emit::{Fields, emit, series};
use crate::telemetry::often::Throttled;
use crate::telemetry::series::Series;
use crate::telemetry::throttle::Throttle;

static DEGRADED: Throttle = Throttle::new();

/// Counts the decisions of a primitive and its layers in a namespace, never by key. `None` if telemetry is off. Cheap
/// to clone.
#[derive(Clone)]
pub(crate) struct Decisions(Option<Arc<Inner>>);

struct Inner {
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
        let (label, namespace): (Arc<str>, Arc<str>) = (limiter.into(), namespace.into());
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
        Self(Some(Arc::new(Inner {
            limiter,
            outcomes: Outcome::ALL.iter().map(outcome).collect(),
            degraded: series(Event::Degraded, "namespace", &namespace),
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

impl Inner {
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
