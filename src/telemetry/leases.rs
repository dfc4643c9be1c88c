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
    told: Option<Series>,
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
        let (kind, namespace): (Arc<str>, Arc<str>) = (kind.into(), namespace.into());
        let series = |metric| Series::new(metric, [("kind", &kind), ("namespace", &namespace)]);
        let (held, lost, renewed) = (
            series(&LEASES_HELD),
            series(&LEASES_LOST),
            series(&LEASES_RENEWED),
        );
        let is_told = !matches!(&*kind, "flight" | "claim");
        let told = is_told.then(|| event_series(Event::LeaseLost, "namespace", &namespace));
        #[cfg(feature = "http")]
        let outlived = is_told.then(|| Throttled::new(&namespace, Event::BodyOutlivedLease));
        Self(Some(Arc::new(Inner {
            namespace,
            told,
            held,
            lost,
            renewed,
            #[cfg(feature = "http")]
            outlived,
        })))
    }

    pub(crate) fn began(&self) {
        self.count(|leases| leases.held.add(1.0));
    }

    pub(crate) fn ended(&self) {
        self.count(|leases| leases.held.add(-1.0));
    }

    pub(crate) fn renewed(&self) {
        self.count(|leases| leases.renewed.count(1));
    }

    pub(crate) fn lost(&self) {
        self.count(|leases| {
            leases.lost.count(1);
            if let Some(told) = &leases.told {
                told.count(1);
                if let Some(count) = LOST.note(1) {
                    let (namespace, count) = (Some(&*leases.namespace), Some(count));
                    let fields = Fields { namespace, count, ..Fields::default() };
                    let text = "a lease ended before it was released: it was not renewed in time, was held for \
                                longer than max_hold, or the store lost it";
                    emit(Event::LeaseLost, fields, format_args!("{text}"));
                }
            }
        });
    }

    /// A response body continues without its lease.
    #[cfg(feature = "http")]
    pub(crate) fn outlived(&self, why: &Error) {
        self.count(|leases| {
            if let Some(outlived) = &leases.outlived {
                outlived.tell(format_args!(
                    "{why}: its lease is released, and the body goes on"
                ));
            }
        });
    }

    fn count(&self, count: impl FnOnce(&Inner)) {
        self.0.as_deref().map(count);
    }
}

// Omits the series, because there are many.
debug!(Leases);
