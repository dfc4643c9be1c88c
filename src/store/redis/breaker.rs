//! A circuit breaker: after repeated failures calls are answered at once, until a probe succeeds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::Error;
use crate::error::{Cause, Outage};
use crate::store::in_memory::lock;

/// How many calls in a row must fail.
const FAILURES: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: AtomicU32,
    open: AtomicBool,
    /// What the last failure said, for those who are answered at once.
    last: Mutex<Option<Outage>>,
}

impl Breaker {
    /// Whether a call may be made.
    pub(super) fn check(&self) -> Result<(), Error> {
        if !self.open.load(Ordering::Acquire) {
            return Ok(());
        }
        let last = lock(&self.last).clone();
        let (why, source) = last.map_or(("unknown".into(), None), |last| (last.text, last.source));
        let text = format!("no call made after {FAILURES} failures in a row, the last: {why}").into();
        Err(Outage { cause: Cause::BreakerOpen, text, source }.into())
    }

    pub(super) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failure; true when this one opens the breaker, and the caller must see to the probing.
    pub(super) fn failed(&self, outage: &Outage) -> bool {
        *lock(&self.last) = Some(outage.clone());
        self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES
            && !self.open.swap(true, Ordering::AcqRel)
    }

    /// Lets calls be made again: after a probe that succeeded, or where nobody probes any more. Then the next
    /// failure opens it again.
    pub(super) fn close(&self, probed: bool) {
        self.failures.store(if probed { 0 } else { FAILURES - 1 }, Ordering::Relaxed);
        self.open.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_once_after_failures_in_a_row() {
        let breaker = Breaker::default();
        let outage = Outage { cause: Cause::TimedOut, text: "too slow".into(), source: None };
        assert!(!breaker.failed(&outage) && !breaker.failed(&outage));
        breaker.succeeded();
        assert!(!breaker.failed(&outage) && !breaker.failed(&outage));
        assert!(breaker.check().is_ok());
        assert!(breaker.failed(&outage));
        assert!(!breaker.failed(&outage), "only one prober");
        let error = breaker.check().unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("too slow"), "{error}");
        breaker.close(true);
        assert!(breaker.check().is_ok());
        assert!(!breaker.failed(&outage));
        breaker.close(false);
        assert!(breaker.check().is_ok());
        assert!(breaker.failed(&outage), "nobody probes: the next failure counts");
    }
}
