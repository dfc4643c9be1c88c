//! A clock that a test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::store::Store;
use crate::store::memory::clock::Clock;

/// The clock of stores in memory, in µs.
#[derive(Clone, Debug)]
pub(crate) struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    pub(crate) fn at(now: i64) -> Self {
        Self(Arc::new(AtomicI64::new(now)))
    }

    /// A store in memory with this clock.
    pub(crate) fn store(&self) -> Store {
        Store::with_clock(Clock::Manual(Arc::clone(&self.0)))
    }

    pub(crate) fn now(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, now: i64) {
        self.0.store(now, Ordering::Relaxed);
    }

    pub(crate) fn advance(&self, span: Duration) {
        self.0.fetch_add(span.as_micros() as i64, Ordering::Relaxed);
    }
}
