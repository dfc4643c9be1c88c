//! The leases of a namespace.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::names::{LEASES_HELD, LEASES_LOST, LEASES_RENEWED};
use super::series::Series;

/// Counts the leases of one kind in a namespace. A cheap clone.
#[derive(Clone)]
pub(crate) struct Leases(Arc<Inner>);

struct Inner {
    held: Series,
    lost: Series,
    renewed: Series,
}

/// Counts what becomes of one lease.
#[derive(Debug)]
pub(crate) struct LeaseCounts {
    leases: Leases,
    is_lost: AtomicBool,
}

impl Leases {
    pub(crate) fn new(kind: &'static str, namespace: &str) -> Self {
        let (kind, namespace): (Arc<str>, Arc<str>) = (kind.into(), namespace.into());
        let series = |metric| Series::new(metric, [("kind", &kind), ("namespace", &namespace)]);
        let (held, lost, renewed) = (series(&LEASES_HELD), series(&LEASES_LOST), series(&LEASES_RENEWED));
        Self(Arc::new(Inner { held, lost, renewed }))
    }

    pub(crate) fn lease(&self) -> LeaseCounts {
        LeaseCounts { leases: self.clone(), is_lost: AtomicBool::new(false) }
    }
}

impl LeaseCounts {
    /// The same for the holder that the lease is handed on to.
    pub(crate) fn next(&self) -> Self {
        self.leases.lease()
    }

    pub(crate) fn began(&self) {
        self.leases.0.held.add(1.0);
    }

    pub(crate) fn ended(&self) {
        self.leases.0.held.add(-1.0);
    }

    pub(crate) fn renewed(&self) {
        self.leases.0.renewed.count(1);
    }

    /// Counted once, however often and by whom it is noticed.
    pub(crate) fn lost(&self) {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            self.leases.0.lost.count(1);
        }
    }
}

/// Without the series, which are many.
impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").finish_non_exhaustive()
    }
}
