//! Counters of the decisions of a limiter.

use std::sync::Arc;

use super::emit::{Fields, emit, series};
use super::names::{DECISIONS, Event, Outcome};
use super::series::Series;
use super::throttle::Throttle;
use crate::Error;

static DEGRADED: Throttle = Throttle::new();

/// Counts the decisions of a primitive and its layers in a namespace, never by key. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Decisions(Arc<Inner>);

struct Inner {
    limiter: &'static str,
    namespace: Arc<str>,
    /// In the order of [`Outcome::ALL`].
    outcomes: Vec<Series>,
    degraded: Series,
}

impl Decisions {
    pub(crate) fn new(limiter: &'static str, namespace: &str) -> Self {
        let (label, namespace): (Arc<str>, Arc<str>) = (limiter.into(), namespace.into());
        let outcome = |outcome: &Outcome| {
            let outcome = outcome.name().into();
            Series::new(&DECISIONS, [("limiter", &label), ("namespace", &namespace), ("outcome", &outcome)])
        };
        Self(Arc::new(Inner {
            limiter,
            outcomes: Outcome::ALL.iter().map(outcome).collect(),
            degraded: series(Event::Degraded, "namespace", &namespace),
            namespace,
        }))
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        if let Some(series) = self.0.outcomes.get(outcome as usize) {
            series.count(1);
        }
        if matches!(outcome, Outcome::FailedOpen | Outcome::LocalShare) {
            self.degraded(outcome);
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
        key.inspect_err(|error| self.count(Outcome::of_error(error)))
    }

    #[cold]
    fn degraded(&self, outcome: Outcome) {
        self.0.degraded.count(1);
        if let Some(count) = DEGRADED.note(1) {
            let Inner { limiter, namespace, .. } = &*self.0;
            let fields = Fields {
                namespace: Some(namespace),
                limiter: Some(limiter),
                count: Some(count),
                ..Fields::default()
            };
            let how =
                if outcome == Outcome::FailedOpen { "without a decision" } else { "by the local share" };
            let text = format_args!("the store failed: {count} requests of this process were admitted {how}");
            emit(Event::Degraded, fields, text);
        }
    }
}

// Omits the series, which are many.
debug!(Decisions, 0.limiter, 0.namespace);
