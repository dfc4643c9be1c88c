//! Limits the events of frequent occurrences to one a second.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const SECOND: u64 = 1_000_000;

/// Counts occurrences between two events.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// When the next event is due, in µs since the first use in this process.
    next: AtomicU64,
    count: AtomicU64,
}

impl Throttle {
    pub(super) const fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            count: AtomicU64::new(0),
        }
    }

    /// Counts occurrences. Returns how many there were since the last event if an event is due: never without the
    /// feature `tracing`.
    pub(super) fn note(&self, times: u64) -> Option<u64> {
        if cfg!(not(feature = "tracing")) {
            return None;
        }
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        let now = BEGAN.get_or_init(Instant::now).elapsed().as_micros();
        self.note_at(times, u64::try_from(now).unwrap_or(u64::MAX))
    }

    fn note_at(&self, times: u64, now: u64) -> Option<u64> {
        self.count.fetch_add(times, Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed);
        if now < next {
            return None;
        }
        let after = now.saturating_add(SECOND);
        self.next
            .compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
            .ok()?;
        Some(self.count.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_a_second_with_the_count_since_the_last() {
        let throttle = Throttle::new();
        assert_eq!(throttle.note_at(1, 0), Some(1));
        assert_eq!(throttle.note_at(2, 1), None);
        assert_eq!(throttle.note_at(1, SECOND - 1), None);
        assert_eq!(throttle.note_at(1, SECOND), Some(4));
        assert_eq!(throttle.note_at(1, SECOND + 1), None);
        assert_eq!(throttle.note_at(1, 5 * SECOND), Some(2));
    }
}
