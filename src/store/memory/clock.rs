//! The clock of an in-memory store.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::sync::atomic::{AtomicBool, Ordering};

/// A clock in microseconds since the Unix epoch that never runs backwards.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Set by the system's clock once, then monotonic. Follows tokio's clock, which a test may pause and advance.
    System {
        since: Instant,
        micros: i64,
        /// Whether the tokio clock of a caller ever differed from the system's clock.
        strayed: Arc<AtomicBool>,
    },
    /// Set by a test.
    #[cfg(test)]
    Manual(Arc<std::sync::atomic::AtomicI64>),
}

/// Decides which steps compare the caller's clock with the system's. Each shard has its own count.
#[derive(Debug, Default)]
pub(super) struct Checks {
    since: i64,
    steps: u32,
}

impl Checks {
    /// Whether this step is checked. A check reads two more clocks (90 ns), which costs as much as a whole step. So
    /// only the first 2 steps in 10 ms and then every 256th are checked.
    fn is_due(&mut self, now: i64) -> bool {
        if now.abs_diff(self.since) > 10_000 {
            *self = Self {
                since: now,
                steps: 0,
            };
        }
        self.steps = self.steps.wrapping_add(1);
        self.steps <= 2 || self.steps.is_multiple_of(256)
    }
}

impl Clock {
    pub(crate) fn system() -> Self {
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let micros = i64::try_from(unix.as_micros()).unwrap_or(0);
        Self::System {
            since: Instant::now(),
            micros,
            strayed: Arc::default(),
        }
    }

    /// Returns the time of a step, by the clock of its caller.
    #[inline]
    pub(super) fn of_step(&self, checks: &mut Checks) -> i64 {
        match self {
            Self::System {
                since,
                micros,
                strayed,
            } => {
                let now = micros + since.elapsed().as_micros() as i64;
                if checks.is_due(now) && !callers_clock().1 {
                    strayed.store(true, Ordering::Release);
                }
                now
            }
            #[cfg(test)]
            Self::Manual(micros) => micros.load(Ordering::Relaxed),
        }
    }

    /// Returns the time of a step as an instant, by the clock of its caller. Up to 1 µs earlier.
    pub(super) fn instant(&self, now: i64) -> Instant {
        match self {
            Self::System { since, micros, .. } => {
                *since + Duration::from_micros(u64::try_from(now - micros).unwrap_or(0))
            }
            #[cfg(test)]
            Self::Manual(_) => Instant::now(),
        }
    }

    /// Returns the time up to which the sweeper may drop state of a shard. `seen` is the time of the last step on the
    /// shard. Must be called with the shard locked, so that the checks of all its steps are visible.
    ///
    /// The sweeper runs on the background thread, where a clock that a test has paused is not visible. The system's
    /// clock may be ahead of the paused clock, and the sweeper would drop state that is live for the test. So the
    /// system's clock is used only while every checked step found that its caller's clock is the system's clock. From
    /// the first difference on, permanently, the time of the last step on the shard is used: state that had expired by
    /// then is not live for any caller of the same clock.
    ///
    /// A paused clock stands still or is set, and its time is never between two reads of the system's clock, so one
    /// check detects it. The first 2 steps on a shard in a window of 10 ms are checked, by the caller's clock. So a
    /// paused clock is missed only if it was paused within 10 ms of 2 other steps on the same shard, and fewer than 256
    /// further steps on the shard used it.
    pub(super) fn of_sweep(&self, seen: i64) -> i64 {
        match self {
            Self::System { strayed, .. } if strayed.load(Ordering::Acquire) => seen,
            Self::System { since, micros, .. } => {
                // Not tokio's clock, which the background runtime may have changed too.
                let elapsed = std::time::Instant::now().saturating_duration_since(since.into_std());
                micros + elapsed.as_micros() as i64
            }
            #[cfg(test)]
            Self::Manual(micros) => micros.load(Ordering::Relaxed),
        }
    }
}

/// Whether the clock of the caller's runtime is the system's clock, so that no test has paused it.
pub(crate) fn callers_clock_is_the_systems() -> bool {
    callers_clock().1
}

/// Returns the time by the clock of the caller's runtime, and whether that is the system's clock, so that no test has
/// paused it.
pub(crate) fn callers_clock() -> (Instant, bool) {
    let before = std::time::Instant::now();
    let callers = Instant::now();
    let now = callers.into_std();
    (callers, before <= now && now <= std::time::Instant::now())
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

    #[tokio::test]
    async fn the_sweeper_goes_by_the_systems_clock_until_another_is_seen() {
        let (clock, mut checks) = (Clock::system(), Checks::default());
        let before = clock.of_step(&mut checks);
        let now = clock.of_sweep(7);
        assert!(
            before > 1_500_000_000_000_000 && (before..=clock.of_step(&mut checks)).contains(&now),
            "{now}"
        );
        tokio::time::pause();
        assert_ne!(clock.of_sweep(7), 7, "no step was seen by that clock");
        // The third step within a short time is not checked.
        clock.of_step(&mut checks);
        assert_ne!(clock.of_sweep(7), 7);
        clock.of_step(&mut Checks::default());
        assert_eq!(clock.of_sweep(7), 7);
    }
}
