//! The validity of a lease in this process. All functions here are pure: they depend on the time of a call, its reply,
//! and the local clock.
//!
//! Clocks of different machines are never compared. An [`Anchor`] converts the server's time to local time. It is a
//! call of this process: the local time when it was *sent*, and the server's time when it ran, which was later.

use std::time::Duration;

use tokio::time::Instant;

/// A call with a reply: when it was sent, by the [clock](crate::clock), and the server's time in its reply, µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Anchor {
    pub(crate) sent: Instant,
    pub(crate) now: i64,
}

impl Anchor {
    /// Returns the time until which a lease is certainly valid in this process. The lease expires at `expiry` on the
    /// server. The result is never longer than the ttl: after the server's clock was set back, a lease there has more
    /// than its ttl left, and may be cut.
    pub(crate) fn until(self, expiry: i64, ttl: Duration, drift: Drift) -> Instant {
        self.sent + drift.certain(self.left(expiry).min(ttl))
    }

    /// Like [`until`](Self::until), for a grant that was pushed after the call. The call may be long ago, so the ttl
    /// counts from the arrival of the push. `lasts`: how long a grant lasts at most.
    pub(crate) fn until_granted(
        self,
        expiry: i64,
        lasts: Duration,
        now: Instant,
        drift: Drift,
    ) -> Instant {
        (self.sent + drift.certain(self.left(expiry))).min(now + drift.certain(lasts))
    }

    /// Returns how much of the lease was left when the call ran.
    fn left(self, expiry: i64) -> Duration {
        Duration::from_micros(u64::try_from(expiry.saturating_sub(self.now)).unwrap_or(0))
    }
}

/// The time until which a lease is valid in this process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Validity {
    until: Instant,
    /// When the last renewal was sent, if there was one.
    pub(crate) sent: Option<Instant>,
    /// The lease was lost or released. This never changes back.
    over: bool,
}

impl Validity {
    /// The validity of a granted lease. Returns `None` if the lease expired before its grant arrived.
    pub(crate) fn granted(until: Instant, now: Instant) -> Option<Self> {
        (now < until).then_some(Self {
            until,
            sent: None,
            over: false,
        })
    }

    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Returns whether the lease is valid. An expired lease never becomes valid again.
    pub(crate) fn holds(&mut self, now: Instant) -> bool {
        self.over |= now >= self.until;
        !self.over
    }

    /// Records a reply to a call sent at `sent`, with a validity until `until`. The reply to the latest call counts,
    /// even if its time is earlier. Returns whether the lease is still valid.
    pub(crate) fn renewed(&mut self, sent: Instant, until: Instant, now: Instant) -> bool {
        let holds = self.holds(now);
        if holds && self.sent.is_none_or(|last| last <= sent) {
            self.until = until;
            self.sent = Some(sent);
        }
        holds
    }

    pub(crate) fn end(&mut self) {
        self.over = true;
    }
}

/// The drift factor: the part of a span by which two clocks may differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Drift(pub(crate) f64);

impl Drift {
    /// The additional difference of clocks that count whole milliseconds.
    const GRAIN: Duration = Duration::from_millis(2);

    /// Returns the part of a span that is certain on any clock.
    pub(crate) fn certain(self, span: Duration) -> Duration {
        // Calculated in ns instead of with `Duration`s, since this runs for each lease. Less than 1 ns is lost.
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 2);
        let drift = Duration::from_nanos((nanos as f64 * self.0) as u64);
        span.saturating_sub(drift + Self::GRAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Counted from when the call was sent, less the drift and 2 ms, and never for longer than the ttl.
    #[test]
    fn a_lease_is_valid_for_what_is_certain() {
        let (sent, drift) = (Instant::now(), Drift(0.25));
        let anchor = Anchor {
            sent,
            now: 7_000_000,
        };
        let after = |until: Instant| until - sent;
        for (left, ttl, valid) in [
            (100, 200, 73),
            (400, 200, 148),
            (200, 200, 148),
            (2, 200, 0),
            (-1, 200, 0),
        ] {
            let until = anchor.until(7_000_000 + left * 1000, ms(ttl), drift);
            assert_eq!(after(until), ms(valid), "{left}");
        }
        assert_eq!(
            after(anchor.until(i64::MIN, ms(200), drift)),
            Duration::ZERO
        );
        // A pushed grant is limited by the call before it, and by its arrival at 50 ms.
        for (left, lasts, valid) in [(100, 200, 73), (400, 200, 198), (-1, 200, 0)] {
            let until =
                anchor.until_granted(7_000_000 + left * 1000, ms(lasts), sent + ms(50), drift);
            assert_eq!(after(until), ms(valid), "{left}");
        }
    }

    #[test]
    fn what_has_ended_is_never_valid_again() {
        let now = Instant::now();
        assert!(Validity::granted(now, now).is_none());
        let lasts = || Validity::granted(now + ms(9), now).unwrap();
        let mut validity = lasts();
        assert!(validity.holds(now + ms(8)) && validity.until() == now + ms(9));
        assert!(!validity.holds(now + ms(9)) && !validity.holds(now));
        assert!(!validity.renewed(now, now + ms(99), now) && validity.until() == now + ms(9));
        let mut validity = lasts();
        validity.end();
        assert!(!validity.holds(now));
        // The reply to the call that was sent last counts, even if its time is earlier. Of two calls at the same time,
        // the second counts.
        let mut validity = lasts();
        for (sent, until, expected) in [(5, 20, 20), (4, 30, 20), (6, 15, 15), (6, 16, 16)] {
            assert!(validity.renewed(now + ms(sent), now + ms(until), now + ms(7)));
            assert_eq!(validity.until(), now + ms(expected), "{sent}");
        }
    }
}
