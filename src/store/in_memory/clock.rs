//! The time that an in-memory store goes by.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Microseconds since the Unix epoch that never run backwards.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Set by the system's clock once, then monotonic. Follows tokio's clock, which a test may pause and advance.
    System {
        since: Instant,
        micros: i64,
        /// Whether a caller's tokio clock was seen to differ from the system's.
        strayed: Arc<AtomicBool>,
    },
    /// As a test sets it.
    #[cfg(test)]
    Manual(Arc<std::sync::atomic::AtomicI64>),
}

/// Which steps compare the caller's clock with the system's; each shard has its own count.
#[derive(Debug, Default)]
pub(super) struct Checks {
    since: i64,
    steps: u32,
}

impl Checks {
    /// A check reads two more clocks (90 ns), which is as much as a whole step: so the first 8 steps in 10 ms are
    /// checked, and then each 256th.
    fn is_due(&mut self, now: i64) -> bool {
        if now.abs_diff(self.since) > 10_000 {
            *self = Self { since: now, steps: 0 };
        }
        self.steps = self.steps.wrapping_add(1);
        self.steps <= 8 || self.steps.is_multiple_of(256)
    }
}

impl Clock {
    pub(crate) fn system() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(unix.as_micros()).unwrap_or(0);
        Self::System { since: Instant::now(), micros, strayed: Arc::default() }
    }

    /// The time of a step, by its caller's clock.
    #[inline]
    pub(super) fn of_step(&self, checks: &mut Checks) -> i64 {
        match self {
            Self::System { since, micros, strayed } => {
                let now = micros + since.elapsed().as_micros() as i64;
                if checks.is_due(now) && !callers_clock_is_the_systems() {
                    strayed.store(true, Ordering::Release);
                }
                now
            }
            #[cfg(test)]
            Self::Manual(micros) => micros.load(Ordering::Relaxed),
        }
    }

    /// The time up to which the sweeper may drop state of a shard, where `seen` is the time of the last step on it. To
    /// be called with the shard locked, so that all checks of its steps are seen.
    ///
    /// The sweeper has a thread of its own, where a clock that a test has paused is not visible: the system's clock may
    /// be ahead of it, and state that the test takes for live would be dropped. So the system's clock counts only while
    /// every checked step found that its caller's clock *is* the system's. From the first that did not, for good, the time
    /// of the last step on the shard counts: no caller of the same clock takes for live what had expired by then.
    ///
    /// A paused clock stands still or is set, and is never between two reads of the system's clock, so one check finds
    /// it. Of the steps on a shard in a window of 10 ms by the caller's clock the first 8 are checked. So the only
    /// paused clock that is missed is one that was paused within 10 ms of 8 other steps on the same shard, and which
    /// less than 256 further steps on it have seen.
    pub(super) fn of_sweep(&self, seen: i64) -> i64 {
        match self {
            Self::System { strayed, .. } if strayed.load(Ordering::Acquire) => seen,
            Self::System { since, micros, .. } => {
                // Not tokio's time, which the background runtime may have changed too.
                let elapsed = std::time::Instant::now().saturating_duration_since(since.into_std());
                micros + elapsed.as_micros() as i64
            }
            #[cfg(test)]
            Self::Manual(micros) => micros.load(Ordering::Relaxed),
        }
    }
}

/// Whether no test has paused the clock of the caller's runtime.
pub(crate) fn callers_clock_is_the_systems() -> bool {
    let before = std::time::Instant::now();
    let callers = Instant::now().into_std();
    before <= callers && callers <= std::time::Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_systems_clock_is_told_from_a_paused_one() {
        for _ in 0..100_000 {
            assert!(callers_clock_is_the_systems());
        }
        tokio::time::pause();
        assert!(!callers_clock_is_the_systems(), "it stands still");
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert!(!callers_clock_is_the_systems(), "it is ahead");
        tokio::time::resume();
        assert!(!callers_clock_is_the_systems(), "it runs, and is ahead");
    }

    #[test]
    fn few_of_many_steps_are_checked() {
        let mut checks = Checks::default();
        assert!((0..8).all(|now| checks.is_due(now)));
        assert!(!(8..255).any(|now| checks.is_due(now)));
        assert!(checks.is_due(255));
        assert!(checks.is_due(1_000_000), "after a pause");
    }
}
