//! The recent hold times of leases in this process: an estimate of how long a waiter waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::Padded;

/// A moving average of the hold times of a namespace. A new lease has a weight of one eighth, and the first ones have
/// more.
///
/// Only releases of this process change the average. So it counts as unknown after a while without a release. It also
/// lets a caller through now and then that it would refuse: otherwise a process whose first lease was held for a long
/// time would refuse all callers, and never learn a shorter hold time.
#[derive(Debug)]
pub(crate) struct HoldTime {
    began: Instant,
    noted: Padded<Noted>,
    /// When a reader last saw a newly noted lease, µs since `began`.
    seen_at: AtomicU64,
    /// When a caller was last let through, µs since `began`.
    probed_at: AtomicU64,
}

#[derive(Debug, Default)]
struct Noted {
    /// The average, ns. 0: unknown.
    average: AtomicU64,
    /// The number of leases in the average, up to [`MOST`].
    leases: AtomicU64,
    /// Whether a lease was noted that no reader has seen.
    is_new: AtomicBool,
}

/// The minimum weight of a lease in the average is one out of this number.
const MOST: u64 = 8;

/// The average is unknown after this time without a release, or after eight times the average if that is longer.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// Without a release, one caller is let through per this time.
const PROBE_EVERY: Duration = Duration::from_secs(1);

impl HoldTime {
    pub(super) fn new(began: Instant) -> Self {
        Self {
            began,
            noted: Padded::default(),
            seen_at: AtomicU64::new(0),
            probed_at: AtomicU64::new(0),
        }
    }

    /// Adds a hold time to the average.
    pub(super) fn note(&self, held: Duration) {
        let Padded(Noted {
            average,
            leases,
            is_new,
        }) = &self.noted;
        let held = u64::try_from(held.as_nanos())
            .unwrap_or(u64::MAX / MOST)
            .clamp(1, u64::MAX / MOST);
        let old = average.load(Ordering::Relaxed);
        let count = leases.load(Ordering::Relaxed);
        let new_count = (count + 1).min(MOST);
        let new = old - old / new_count + held / new_count;
        average.store(
            if count == 0 { held } else { new.max(1) },
            Ordering::Relaxed,
        );
        if new_count != count {
            leases.store(new_count, Ordering::Relaxed);
        }
        is_new.store(true, Ordering::Relaxed);
    }

    /// Returns the average, if there is any.
    pub(crate) fn average(&self) -> Option<Duration> {
        let nanos = self.noted.0.average.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Returns the average, if a lease was released recently.
    pub(super) fn recent(&self, now: Instant) -> Option<Duration> {
        let average = self.average()?;
        let now = self.micros(now);
        let is_new = &self.noted.0.is_new;
        if is_new.load(Ordering::Relaxed) && is_new.swap(false, Ordering::Relaxed) {
            self.seen_at.store(now, Ordering::Relaxed);
        }
        let known_for = KNOWN_FOR.max(average.saturating_mul(8));
        let age = now.saturating_sub(self.seen_at.load(Ordering::Relaxed));
        (Duration::from_micros(age) < known_for).then_some(average)
    }

    /// Whether a caller that would be refused is let through, to measure a new hold time.
    pub(super) fn probes(&self, now: Instant) -> bool {
        let now = self.micros(now);
        let probed_at = self.probed_at.load(Ordering::Relaxed);
        let last = self.seen_at.load(Ordering::Relaxed).max(probed_at);
        if Duration::from_micros(now.saturating_sub(last)) < PROBE_EVERY {
            return false;
        }
        let is_mine = self
            .probed_at
            .compare_exchange(probed_at, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if is_mine {
            self.noted.0.leases.store(1, Ordering::Relaxed);
        }
        is_mine
    }

    fn micros(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_lease_counts_for_an_eighth_and_the_first_ones_for_more() {
        let (time, ns) = (HoldTime::new(Instant::now()), Duration::from_nanos);
        assert_eq!(time.average(), None);
        for (held, average) in [(800, 800), (1600, 1200), (600, 1000), (200, 800)] {
            time.note(ns(held));
            assert_eq!(time.average(), Some(ns(average)), "{held}");
        }
        (0..4).for_each(|_| time.note(ns(800)));
        time.note(ns(1600));
        assert_eq!(time.average(), Some(ns(900)));
        // The longest hold time fits into the number, and a hold time of zero counts as 1 ns.
        let time = HoldTime::new(Instant::now());
        time.note(Duration::ZERO);
        assert_eq!(time.average(), Some(ns(1)));
        (0..20).for_each(|_| time.note(Duration::MAX));
        assert!(time.average() > Some(Duration::from_secs(86_400)));
    }

    #[test]
    fn after_a_while_without_a_release_nothing_is_known() {
        let began = Instant::now();
        for (held, known_for) in [(ms(50), ms(60_000)), (ms(10_000), ms(80_000))] {
            let time = HoldTime::new(began);
            time.note(held);
            assert_eq!(time.recent(began + ms(5)), Some(held));
            assert_eq!(time.recent(began + known_for), Some(held));
            assert_eq!(time.recent(began + ms(5) + known_for), None);
            time.note(held);
            assert_eq!(time.recent(began + ms(6) + known_for), Some(held));
        }
    }

    /// Without a release, one caller per second is let through that would be refused.
    #[test]
    fn one_caller_in_a_second_is_let_through() {
        let began = Instant::now();
        let time = HoldTime::new(began);
        time.note(ms(6000));
        let passes =
            |after| time.recent(began + ms(after)).is_some() && time.probes(began + ms(after));
        assert_eq!(
            [5, 1004, 1005, 1006, 2004, 2005].map(passes),
            [false, false, true, false, false, true]
        );
        time.note(ms(50));
        assert_eq!(time.average(), Some(ms(3025)));
        assert_eq!(
            [2006, 3005, 3006, 3007].map(passes),
            [false, false, true, false]
        );
        time.note(ms(50));
        assert_eq!([4000, 4001, 5000].map(passes), [false, false, true]);
        time.note(ms(50));
        assert!(time.average() < Some(ms(1000)), "the fourth second");
    }
}
