//! What a process may believe of a lease: pure functions of what it sent, what it was answered, and its clock. The
//! model in `model/` calls the same ones.
//!
//! Clocks of different machines are never compared. What the server says of its own time becomes local time by an
//! [`Anchor`]: a call of this process, when it was *sent*, and what the server's clock said when it ran, which was later.

use std::time::Duration;

use tokio::time::Instant;

/// A call that was answered: when it was sent, by the [clock](super::clock), and what the server's clock said, µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Anchor {
    pub(crate) sent: Instant,
    pub(crate) now: i64,
}

impl Anchor {
    /// Until when a lease is certain here that the server keeps until `expiry`. Never for longer than its time to live:
    /// after a server's clock was set back, what is left of a lease there is longer than that, and may be cut.
    pub(crate) fn until(self, expiry: i64, ttl: Duration, drift: Drift) -> Instant {
        self.sent + drift.sure(self.left(expiry).min(ttl))
    }

    /// The same of a grant that was pushed after the call, which may be long ago: its time to live counts from when it is
    /// heard of. `stands`: for how long a grant stands at most.
    pub(crate) fn until_granted(self, expiry: i64, stands: Duration, now: Instant, drift: Drift) -> Instant {
        (self.sent + drift.sure(self.left(expiry))).min(now + drift.sure(stands))
    }

    /// How much was left when the call ran.
    fn left(self, expiry: i64) -> Duration {
        Duration::from_micros(u64::try_from(expiry - self.now).unwrap_or(0))
    }
}

/// Until when this process believes in a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Belief {
    until: Instant,
    /// When the call was sent that said so, if it was a renewal.
    pub(super) sent: Option<Instant>,
    /// Lost or given back. Never again otherwise.
    over: bool,
}

impl Belief {
    /// What was granted; `None` where it has run out on its way.
    pub(crate) fn granted(until: Instant, now: Instant) -> Option<Self> {
        (now < until).then_some(Self { until, sent: None, over: false })
    }

    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Whether it holds. What has run out is over for good.
    pub(crate) fn holds(&mut self, now: Instant) -> bool {
        self.over |= now >= self.until;
        !self.over
    }

    /// A call sent at `sent` was answered that it lasts until then: the server's latest word counts, also where it is
    /// less than was believed. Whether it still holds.
    pub(crate) fn renewed(&mut self, sent: Instant, until: Instant, now: Instant) -> bool {
        let holds = self.holds(now);
        if holds && self.sent.is_none_or(|last| last <= sent) {
            (self.until, self.sent) = (until, Some(sent));
        }
        holds
    }

    pub(crate) fn end(&mut self) {
        self.over = true;
    }
}

/// Of a span in server time, how much of it is sure by another clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Drift(pub(crate) f64);

impl Drift {
    /// What clocks may differ by when they tell milliseconds.
    const GRAIN: Duration = Duration::from_millis(2);

    /// The part of a span that is sure.
    pub(crate) fn sure(self, span: Duration) -> Duration {
        span.saturating_sub(span.mul_f64(self.0) + Self::GRAIN)
    }
}
