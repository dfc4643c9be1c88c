//! A circuit breaker: after repeated failures calls fail at once, except for occasional probes.
//!
//! Half-open is a point in time, not a task: the first call after it is the probe. So a runtime that is blocked, or
//! a caller that goes away during its probe, does not block other callers.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Cause, Outage};
use crate::store::BreakerState;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use crate::telemetry::Server;
use crate::{Error, random};

/// The number of failures in a row that open the breaker.
const FAILURES: u32 = 3;

/// The longest pause after the breaker opened. Doubled after each failed probe. If a failed call took longer, the longest
/// pause after it is that, since a caller waits for each probe; up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Breaker {
    /// Whether a success changes the state. Read without the lock.
    failing: AtomicBool,
    state: Mutex<State>,
    /// How long a probe may take. After that another call may be the probe.
    probe: Duration,
    telemetry: Server,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// The time and the outage of the last failure.
    last: Option<(Instant, Outage)>,
    /// `None` if the breaker is closed.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    /// When the next call may pass.
    until: Instant,
    /// The number of failed probes.
    probes: u32,
    /// Whether a probe is in flight.
    probing: bool,
}

impl Breaker {
    pub(super) fn new(probe: Duration, telemetry: Server) -> Self {
        Self {
            failing: AtomicBool::new(false),
            state: Mutex::default(),
            probe,
            telemetry,
        }
    }

    /// Checks whether a call may be made now.
    pub(super) fn check(&self) -> Result<(), Error> {
        if !self.failing.load(Ordering::Acquire) {
            return Ok(());
        }
        let now = Instant::now();
        let mut state = lock(&self.state);
        let State {
            failures,
            last,
            open,
        } = &mut *state;
        let Some(open) = open else { return Ok(()) };
        if now >= open.until {
            (open.until, open.probing) = (now + self.probe, true);
            drop(state);
            self.telemetry.breaker_half_open();
            return Ok(());
        }
        let (why, source) = match last {
            Some((_, last)) => (&*last.text, last.source.clone()),
            None => ("unknown", None),
        };
        let text = format!(
            "the breaker is open, no call made; failures in a row: {failures}, the last: {why}"
        )
        .into();
        Err(Outage {
            cause: Cause::BreakerOpen,
            text,
            source,
        }
        .into())
    }

    pub(super) fn state(&self) -> BreakerState {
        match &lock(&self.state).open {
            None => BreakerState::Closed,
            Some(open) if open.probing || Instant::now() >= open.until => BreakerState::HalfOpen,
            Some(_) => BreakerState::Open,
        }
    }

    /// Closes the breaker. Returns whether it was open.
    pub(super) fn succeeded(&self) -> bool {
        if !self.failing.load(Ordering::Relaxed) {
            return false;
        }
        let was = {
            let mut state = lock(&self.state);
            // Under the lock, or a failure that comes next would not be seen.
            self.failing.store(false, Ordering::Release);
            std::mem::take(&mut *state)
        };
        if was.open.is_some() {
            self.telemetry.breaker_closed();
        }
        was.open.is_some()
    }

    /// Lets the next call pass as a probe, because the server has answered elsewhere.
    pub(super) fn half_open(&self) {
        if let Some(open) = &mut lock(&self.state).open {
            open.until = Instant::now();
        }
    }

    /// Closes the breaker without a success, because its runtime has ended.
    pub(super) fn retire(&self) {
        let was = std::mem::take(&mut *lock(&self.state));
        if was.open.is_some() {
            self.telemetry.breaker_dropped();
        }
    }

    /// Counts the failure of a call that was sent at `sent`. Of calls that were in flight at the same time, only
    /// the first counts. `conclusive`: no connection could be made, so the next call would fail too.
    pub(super) fn failed(&self, sent: Instant, outage: &Outage, conclusive: bool) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let State {
            failures,
            last,
            open,
        } = &mut *state;
        if last.as_ref().is_some_and(|(counted, _)| sent < *counted) {
            return;
        }
        *last = Some((now, outage.clone()));
        let took = now.saturating_duration_since(sent);
        *failures = failures.saturating_add(1);
        self.failing.store(true, Ordering::Release);
        match open {
            Some(open) => {
                open.probes = open.probes.saturating_add(1);
                (open.until, open.probing) = (now + pause_after(took, open.probes), false);
                drop(state);
                self.telemetry.breaker_reopened(outage);
            }
            None if conclusive || *failures >= FAILURES => {
                *open = Some(Open {
                    until: now + pause_after(took, 0),
                    probes: 0,
                    probing: false,
                });
                drop(state);
                self.telemetry.breaker_opened(outage);
            }
            None => {}
        }
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        self.retire();
    }
}

/// Returns a random pause after `failures` failures, between an eighth of the longest pause and all of it. So the
/// processes of a fleet do not all come back at once.
pub(super) fn pause(failures: u32) -> Duration {
    pause_after(Duration::ZERO, failures)
}

fn pause_after(took: Duration, failures: u32) -> Duration {
    let span = PAUSE
        .saturating_mul(1 << failures.min(10))
        .max(took)
        .min(LONGEST_PAUSE);
    span / 8 + (span * 7 / 8).mul_f64(random::fraction())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage() -> Outage {
        Outage {
            cause: Cause::TimedOut,
            text: "too slow".into(),
            source: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn opens_after_failures_in_a_row_and_probes_by_time() {
        let breaker = Breaker::new(Duration::from_secs(2), Server::new("test"));
        let fail = async || {
            let sent = Instant::now();
            tokio::time::advance(Duration::from_millis(1)).await;
            breaker.failed(sent, &outage(), false);
        };
        fail().await;
        fail().await;
        assert!(!breaker.succeeded());
        fail().await;
        fail().await;
        assert!(breaker.check().is_ok());
        fail().await;
        let error = breaker.check().unwrap_err();
        assert!(
            error.is_unavailable() && error.to_string().contains("too slow"),
            "{error}"
        );
        assert_eq!(breaker.state(), BreakerState::Open);
        tokio::time::advance(PAUSE).await;
        assert!(breaker.check().is_ok(), "the probe");
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(breaker.check().is_err(), "one probe at a time");
        // The probe never ends.
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(breaker.check().is_ok(), "another probe");
        fail().await;
        assert!(breaker.check().is_err());
        tokio::time::advance(2 * PAUSE).await;
        assert!(breaker.check().is_ok());
        assert!(breaker.succeeded());
        assert!(breaker.check().is_ok() && breaker.check().is_ok());
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_fail_together_are_one_failure() {
        let breaker = Breaker::new(Duration::from_secs(2), Server::new("test"));
        let sent = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        for _ in 0..100 {
            breaker.failed(sent, &outage(), false);
        }
        assert!(breaker.check().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_took_long_is_not_repeated_at_once() {
        let breaker = Breaker::new(Duration::from_secs(2), Server::new("test"));
        // The first one opens the breaker; the second is a probe, and so on. The pauses have not grown until then.
        for _ in 0..3 {
            let sent = Instant::now();
            tokio::time::advance(Duration::from_secs(2)).await;
            breaker.failed(sent, &outage(), true);
            tokio::time::advance(LONGEST_PAUSE / 8 - Duration::from_millis(1)).await;
            assert!(breaker.check().is_err());
            tokio::time::advance(LONGEST_PAUSE).await;
            assert!(breaker.check().is_ok(), "the probe");
        }
    }

    #[test]
    fn pauses_grow_and_differ() {
        for failures in [0, 3, 100] {
            let most = PAUSE
                .saturating_mul(1 << failures.min(10))
                .min(LONGEST_PAUSE);
            let pauses: Vec<_> = (0..20).map(|_| pause(failures)).collect();
            assert!(
                pauses.iter().all(|pause| (most / 8..=most).contains(pause)),
                "{pauses:?}"
            );
            assert!(
                pauses.iter().any(|pause| *pause < most / 2)
                    && pauses.iter().any(|pause| *pause > most / 2)
            );
        }
    }
}
