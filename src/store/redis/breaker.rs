//! Pauses after failures of a server: the circuit breaker of calls, and the pauses between attempts to stay connected.
//!
//! Half-open is a point in time, not a task: the first call after it is the probe. So a runtime that is blocked, or a
//! caller that is dropped during its probe, does not block other callers.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
use crate::store::redis::errors::is_outage;
use crate::store::stats::BreakerState;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use crate::telemetry::server::Server;

/// The number of failures in a row that open the breaker.
const FAILURES: u32 = 3;

/// The longest pause after the breaker has opened. It is doubled after each failed probe, up to [`LONGEST_PAUSE`]. If
/// the failed call took longer than that, its duration (with the same maximum) is the longest pause, since a caller
/// waits for each probe.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Breaker {
    /// Whether a success changes the state. Read without the lock.
    failing: AtomicBool,
    state: Mutex<State>,
    /// How long a probe may take. After that, another call may be the probe.
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
            // Under the lock, since otherwise the next failure could be missed.
            self.failing.store(false, Ordering::Release);
            std::mem::take(&mut *state)
        };
        if was.open.is_some() {
            self.telemetry.breaker_closed();
        }
        was.open.is_some()
    }

    /// Lets the next call pass as a probe, because the server replied to a call elsewhere.
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

    /// Counts the failure of a call that was sent at `sent`. Of calls that were in flight at the same time, only the
    /// first counts. `conclusive`: no connection could be made, so the next call would fail too.
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

/// Returns a random pause after `failures` failures, between an eighth of the longest pause and all of it, so that the
/// processes of a fleet do not all retry at the same time.
pub(super) fn pause(failures: u32) -> Duration {
    pause_after(Duration::ZERO, failures)
}

fn pause_after(took: Duration, failures: u32) -> Duration {
    let span = PAUSE
        .saturating_mul(1 << failures.min(10))
        .max(took)
        .min(LONGEST_PAUSE);
    span / 8 + (span * 7 / 8).mul_f64(clock::fraction())
}

/// One failure is forgotten for each such time. So a server that closes each subscription at once gets about four new
/// ones a second.
const FORGIVEN: Duration = Duration::from_millis(250);

/// After a subscription that lasted for this long, the next attempt is made within 25 ms, and earlier failures are
/// forgotten. So a server that closes each subscription after any time gets at most about a dozen new ones a second.
const LASTED: Duration = Duration::from_millis(100);

/// The pause after the first refusal, and the longest one: it doubles each time. Waiters poll meanwhile.
const REFUSED: Duration = Duration::from_millis(500);
const LONGEST_REFUSED: Duration = Duration::from_secs(15);

/// The result of an attempt to stay connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It was connected for this time.
    Lasted(Duration),
    /// The server does not permit or does not support it, so a retry would fail too.
    Refused,
}

impl Attempt {
    pub(super) const FAILED: Self = Self::Lasted(Duration::ZERO);

    /// A failed attempt.
    pub(super) fn of(outage: &Outage) -> Self {
        if is_outage(outage.cause) {
            Self::FAILED
        } else {
            Self::Refused
        }
    }
}

/// The recent failures, for the pauses between attempts.
#[derive(Default)]
pub(super) struct Failures {
    count: u32,
    last: Option<Instant>,
    /// The last pause after a refusal.
    refused: Duration,
}

impl Failures {
    /// Waits before the next attempt.
    pub(super) async fn pause(&mut self, attempt: Attempt) {
        tokio::time::sleep(self.next(attempt)).await;
    }

    fn next(&mut self, attempt: Attempt) -> Duration {
        let refused = std::mem::take(&mut self.refused);
        match attempt {
            Attempt::Lasted(lasted) if lasted >= LASTED => {
                *self = Self::default();
                return pause(0);
            }
            Attempt::Refused => {
                self.refused = (2 * refused).clamp(REFUSED, LONGEST_REFUSED);
                return self.refused.mul_f64(1.0 - clock::fraction() / 4.0);
            }
            Attempt::Lasted(_) => {}
        }
        let since = self.last.map_or(Duration::MAX, |last| last.elapsed());
        let forgiven = since.as_millis() / FORGIVEN.as_millis();
        self.count = self
            .count
            .saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX))
            + 1;
        self.last = Some(Instant::now());
        pause(self.count + 1)
    }
}

#[cfg(test)]
mod tests;
