//! Counters of the leases of a namespace.

use std::sync::Arc;

use super::names::{Event, LEASES_HELD, LEASES_LOST, LEASES_RENEWED};
#[cfg(feature = "http")]
use crate::error::Error;
use crate::telemetry::emit::{Fields, emit, series as event_series};
#[cfg(feature = "http")]
use crate::telemetry::often::Throttled;
use crate::telemetry::series::Series;
use crate::telemetry::throttle::Throttle;

static LOST: Throttle = Throttle::new();

/// Counts the start, the renewals, the loss and the end of the leases of one kind in a namespace. `None` if telemetry
/// is off. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Leases(Option<Arc<Inner>>);

struct Inner {
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
        Self(Some(Arc::new(Inner {
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
