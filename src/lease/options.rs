//! The options of leases, and the time spans and rules that all leases of a namespace share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::lease::key_state::Spans;
use crate::lease::token::Marks;
use crate::macros::in_range;
use crate::store::Store;
use crate::store::validity::{Drift, Validity};
use crate::telemetry::counters::Leases;

/// The options of the leases of one value, such as one [`Mutex`](crate::Mutex).
#[derive(Clone, Debug)]
pub(crate) struct LeaseOptions {
    pub(crate) ttl: Duration,
    /// Whether a watchdog renews leases while they are held.
    pub(crate) watchdog: bool,
    /// The maximum time for which a watchdog keeps a lease for one holder. `None`: as long as the lease is held.
    pub(crate) max_hold: Option<Duration>,
    /// The minimum hold time: an earlier release takes effect only after it.
    pub(crate) at_least_for: Duration,
    pub(crate) drift: Drift,
    /// How often waiters send heartbeats if no pushed message can wake them.
    pub(crate) ask_every: Duration,
    /// Whether other libraries may release the lock, which pushes no message.
    pub(crate) foreign: bool,
    /// Whether the waiters of one process for a key form one line, and hand the lease on to each other.
    pub(crate) cohorts: bool,
    /// The suffix of tokens that identifies their owner: `@` and a name.
    pub(crate) signature: String,
    /// How long the store keeps the last fence of a key. `None`: the default.
    pub(crate) fence_ttl: Option<Duration>,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            watchdog: true,
            max_hold: None,
            at_least_for: Duration::ZERO,
            drift: Drift(0.01),
            ask_every: Duration::from_millis(50),
            foreign: false,
            cohorts: false,
            signature: String::new(),
            fence_ttl: None,
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(86_400);

/// The range of `fence_ttl`.
const SHORTEST_FENCE: Duration = Duration::from_secs(1);
const LONGEST_FENCE: Duration = Duration::from_secs(365 * 86_400);

impl LeaseOptions {
    /// Checks the values that a user can set.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self {
            ttl,
            drift: Drift(factor),
            ..
        } = *self;
        in_range(
            "the ttl of a lease",
            SHORTEST..=LONGEST,
            "10 ms to 1 day",
            ttl,
        )?;
        if !(0.0..1.0).contains(&factor) {
            return Err(Error::invalid(format!(
                "drift_factor must be from 0 to below 1, is {factor}"
            )));
        }
        in_range(
            "max_hold",
            ttl..,
            format_args!("at least the ttl ({ttl:?})"),
            self.max_hold,
        )?;
        if self.max_hold.is_some() && !self.watchdog {
            return Err(Error::invalid(
                "max_hold needs the watchdog: without it a lease lasts for its ttl",
            ));
        }
        in_range(
            "at_least_for",
            ..=ttl,
            format_args!("at most the ttl ({ttl:?})"),
            self.at_least_for,
        )?;
        if self.drift.certain(ttl) < SHORTEST / 2 {
            return Err(Error::invalid(format!(
                "the ttl less the drift must be at least 5 ms, is {:?} (ttl {ttl:?}, drift_factor {factor})",
                self.drift.certain(ttl)
            )));
        }
        in_range(
            "fence_ttl",
            SHORTEST_FENCE..=LONGEST_FENCE,
            "1 s to 365 days",
            self.fence_ttl,
        )?;
        in_range(
            "fence_ttl",
            ttl..,
            format_args!("at least the ttl ({ttl:?})"),
            self.fence_ttl,
        )
    }
}

impl LeaseOptions {
    /// Returns the part of each token that the options determine.
    pub(super) fn marks(&self) -> Marks {
        Marks::new(micros(self.ttl), self.fence_ttl, &self.signature)
    }

    /// Returns when a lease that was acquired without waiting is first renewed, if ever. `began`: when its tokens were
    /// created. `at`: when it was granted.
    pub(crate) fn first_renewal(
        &self,
        began: Instant,
        validity: &Validity,
        at: Instant,
    ) -> Option<Instant> {
        if !self.watchdog {
            return None;
        }
        let left = validity.until().saturating_duration_since(at);
        Some(renewal(began, at, left, self.ttl))
    }

    /// Returns the time at which a lease ends whose holder has held it since `at`, however often it is renewed.
    pub(super) fn hold_ends(&self, at: Instant) -> Option<Instant> {
        at.checked_add(self.max_hold?)
    }
}

/// Returns when a lease that lasts for `left` from `at` on is renewed: after a third of that time, and a little
/// earlier, so that renewals that are due at about the same time run together.
pub(super) fn renewal(began: Instant, at: Instant, left: Duration, ttl: Duration) -> Instant {
    let after = left / 3;
    clock::together(began, at + after, (ttl / 24).min(after / 2))
}

/// The common state of the leases of one value in a namespace. There is one equal copy for each stripe of threads: see
/// [`Leases`].
///
/// [`Leases`]: super::namespace::Leases
#[derive(Clone)]
pub(crate) struct Holding {
    pub(crate) options: LeaseOptions,
    pub(crate) leases: Leases,
    /// The part of each token that the options determine. See [`token`](super::token).
    pub(super) marks: Marks,
    /// Whether waiters of this value are rejected.
    pub(crate) closed: watch::Sender<bool>,
    /// A receiver of `closed` that has not read its first change.
    pub(super) unseen: watch::Receiver<bool>,
    /// The namespace of the leases; `None` in models.
    pub(super) watched: Option<Weak<dyn Watched>>,
}

/// The namespace of leases for whose loss tasks wait.
pub(crate) trait Watched: Send + Sync {
    /// Makes sure that messages about the loss of a lease arrive. `since`: the time of the last call for this lease, or
    /// of its grant. If messages may have been missed since, the lease is looked up in the store.
    fn watched(self: Arc<Self>, id: u64, since: Instant);
}

impl Holding {
    pub(crate) fn new(options: LeaseOptions, leases: Leases) -> Self {
        let (closed, unseen) = watch::channel(false);
        Self {
            marks: options.marks(),
            options,
            leases,
            closed,
            unseen,
            watched: None,
        }
    }

    /// Whether waiters are rejected. Takes no lock.
    pub(crate) fn is_closed(&self) -> bool {
        self.unseen.has_changed().unwrap_or(true)
    }
}

debug!(Holding, options);

/// The time spans and properties of a namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How long a grant to a waiter lasts at most, until it is renewed.
    pub(crate) grant: Duration,
    /// How long a waiter counts as alive after a heartbeat.
    pub(crate) alive: Duration,
    /// How often a waiter sends a heartbeat.
    pub(crate) heartbeat: Duration,
    /// How long a call takes at most, including the time in the queue.
    pub(crate) call: Duration,
    /// The withdrawal of a waiter is sent at once while fewer releases than this are pending.
    pub(crate) releases: usize,
    /// Whether the store is in another process, so that calls take time and can fail.
    pub(crate) is_remote: bool,
    /// Whether grants count only once replicas have received them. A pushed message does not show that, but the reply
    /// to a heartbeat does.
    pub(crate) is_durable: bool,
    /// Whether the kind keeps outcomes: then a message may follow the loss of a place.
    pub(crate) has_outcomes: bool,
}

/// How long a grant to a waiter lasts until it is confirmed.
const GRANT: Duration = Duration::from_millis(1500);

/// How long a waiter counts as alive after a heartbeat.
pub(super) const ALIVE: Duration = Duration::from_secs(7);

/// How often a waiter sends a heartbeat: at least once while a grant lasts, so that a waiter behind the grant of a dead
/// process notices when that grant expires. It is a little shorter than a grant, so that a grant whose message was lost
/// is found in time to renew it.
const HEARTBEAT: Duration = Duration::from_millis(1350);

/// How long an acquire that was withdrawn is refused if it runs late.
const TOMBSTONE: Duration = Duration::from_secs(60);

/// The withdrawal of a waiter is sent at once while fewer releases than this are pending in the namespace.
const RELEASES: usize = 16;

/// [`GRANT`], plus the time in which the heartbeat that finds the grant, and the renewal that confirms it, become
/// durable.
fn grant_time(store: &Store) -> Duration {
    GRANT + 3 * store.durable_within().unwrap_or_default()
}

pub(super) fn spans(store: &Store) -> Spans {
    Spans {
        grant: micros(grant_time(store)),
        alive: micros(ALIVE),
        tombstone: micros(TOMBSTONE),
    }
}

pub(crate) fn rules(store: &Store, has_outcomes: bool) -> Rules {
    Rules {
        grant: grant_time(store),
        alive: ALIVE,
        heartbeat: HEARTBEAT,
        call: store.call_limit(),
        releases: RELEASES,
        is_remote: !store.is_in_memory(),
        is_durable: store.durable_within().is_some(),
        has_outcomes,
    }
}

/// Converts a span to whole µs, rounded up.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_refused() {
        const NANO: Duration = Duration::from_nanos(1);
        let (usual, ms, s) = (
            LeaseOptions::default,
            Duration::from_millis,
            Duration::from_secs,
        );
        let of = |ttl| LeaseOptions { ttl, ..usual() };
        let drift = |ttl, factor| LeaseOptions {
            drift: Drift(factor),
            ..of(ttl)
        };
        let at_least_for = |at_least_for| LeaseOptions {
            at_least_for,
            ..of(s(2))
        };
        let fence = |ttl, span| LeaseOptions {
            fence_ttl: Some(span),
            ..of(ttl)
        };
        let max_hold = |ttl, span, watchdog| LeaseOptions {
            max_hold: Some(span),
            watchdog,
            ..of(ttl)
        };
        let day = s(86_400);
        for good in [
            usual(),
            of(ms(10)),
            of(day),
            drift(s(1), 0.0),
            drift(s(30), 0.99),
            drift(ms(10), 0.3),
            at_least_for(s(2)),
            fence(ms(10), s(1)),
            fence(s(2), s(2)),
            fence(s(30), 365 * day),
            max_hold(s(2), s(2), true),
        ] {
            assert!(good.check().is_ok(), "{good:?}");
        }
        for (bad, text) in [
            (of(ms(10) - NANO), "the ttl of a lease"),
            (of(day + NANO), "the ttl of a lease"),
            (drift(s(1), -0.1), "drift_factor"),
            (drift(s(1), 1.0), "drift_factor"),
            (drift(s(1), f64::NAN), "drift_factor"),
            (drift(ms(10), 0.31), "the ttl less the drift"),
            (at_least_for(s(2) + NANO), "at_least_for"),
            (
                max_hold(s(2), s(2) - NANO, true),
                "max_hold must be at least the ttl (2s)",
            ),
            (max_hold(s(2), s(9), false), "max_hold needs the watchdog"),
            (fence(ms(10), s(1) - NANO), "1 s to 365 days"),
            (fence(s(30), 365 * day + NANO), "1 s to 365 days"),
            (fence(s(2), s(2) - NANO), "at least the ttl"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(
                error.is_invalid() && error.to_string().contains(text),
                "{bad:?}: {error}"
            );
        }
    }

    #[test]
    fn a_span_in_microseconds_is_not_shorter() {
        let of = |nanos| micros(Duration::from_nanos(nanos));
        assert_eq!([0, 1, 1000, 1001, 2_000_000].map(of), [0, 1, 1, 2, 2000]);
        // Twice the longest span still fits into the number.
        assert!(micros(Duration::MAX) > micros(1000 * Duration::from_secs(365 * 86_400)));
        assert!(micros(Duration::MAX).checked_mul(2).is_some());
    }

    /// Grants last longer if they count only once replicas have received them.
    #[test]
    fn grants_wait_for_replicas() {
        let builder = || Store::builder().timeout(Duration::from_secs(3));
        let on_redis = builder().redis("redis://127.0.0.1:1").unwrap();
        for (store, is_remote) in [(Store::in_memory(), false), (on_redis, true)] {
            let rules = rules(&store, true);
            assert_eq!(
                (rules.grant, rules.is_remote, rules.is_durable),
                (GRANT, is_remote, false)
            );
        }
        let durable = builder()
            .replicas(1, Duration::from_millis(100))
            .redis("redis://127.0.0.1:1")
            .unwrap();
        assert!(rules(&durable, true).is_durable);
        assert_eq!(
            spans(&durable).grant,
            micros(GRANT + 3 * durable.durable_within().unwrap())
        );
    }
}
