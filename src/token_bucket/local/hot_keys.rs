//! Detects hot keys. A fixed table counts the requested tokens; the hash of a key selects its place.

use crate::sync::atomic::{AtomicU64, Ordering};

/// A key is hot if this many tokens are requested within the time that tokens are held.
const HOT: u64 = 16;

const PLACES: usize = 1024;

/// The number of bits of a count.
const BITS: u32 = 24;

/// The number of bits of the hash that distinguish keys of one place.
const TAG_BITS: u32 = 12;

/// The counts. Each place contains the number of its time span, some bits of the key's hash, and the tokens
/// requested in that span. Keys with the same place overwrite each other.
pub(crate) struct HotKeyCounter(Box<[AtomicU64]>);

impl Default for HotKeyCounter {
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl HotKeyCounter {
    /// Counts requested tokens. If the key is hot, returns the count of this span each time that it passes a
    /// multiple of [`HOT`].
    pub(super) fn note(&self, hash: u64, now: i64, span: i64, tokens: i64) -> Option<i64> {
        let place = &self.0[(hash >> 20) as usize % PLACES];
        let tag = hash & ((1 << TAG_BITS) - 1);
        let this = ((now.div_euclid(span) as u64) << TAG_BITS | tag) & (u64::MAX >> BITS);
        let value = place.load(Ordering::Relaxed);
        let before = if value >> BITS == this {
            value & ((1 << BITS) - 1)
        } else {
            0
        };
        let after = (before + tokens.unsigned_abs()).min((1 << BITS) - 1);
        // Two threads that count at the same time may lose one of the counts.
        place.store(this << BITS | after, Ordering::Relaxed);
        (before / HOT != after / HOT).then_some(after as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_hot_that_is_asked_for_often_within_a_span() {
        let (hot_keys, span) = (HotKeyCounter::default(), 10_000);
        let often: Vec<_> = (0..40)
            .filter_map(|at| hot_keys.note(7, 1_000_000 + at, span, 1))
            .collect();
        assert_eq!(often, [16, 32]);
        for key in [7, u64::MAX] {
            let seldom = (0..1000)
                .filter_map(|at| hot_keys.note(key, 2_000_000 + at * 1000, span, 1))
                .count();
            assert_eq!(seldom, 0, "ten in a span");
        }
        assert_eq!(hot_keys.note(7, 5_000_000, span, 100), Some(100));
        let others = (0..1000)
            .filter_map(|key| hot_keys.note(key, 6_000_000, span, 1))
            .count();
        assert_eq!(others, 0, "many keys in one place");
        for bit in 0..TAG_BITS {
            let two = (0..100)
                .filter_map(|at| hot_keys.note((at % 2) << bit, 6_010_000, span, 1))
                .count();
            assert_eq!(two, 0, "two keys in one place");
        }
        let many = (0..16 * 1000)
            .filter_map(|at| hot_keys.note((at % 1000) << 20, 6_020_000, span, 1))
            .count();
        assert_eq!(many, 1000, "keys in many places");
        let late = (0..40)
            .filter_map(|at| hot_keys.note(7, i64::MAX / 2 + at % 2, 1000, 1))
            .count();
        assert_eq!(late, 2, "so late that a span has a large number");
        let most = (1 << BITS) - 1;
        assert_eq!(hot_keys.note(7, 7_000_000, span, i64::MAX), Some(most));
        assert_eq!(
            hot_keys.note(7, 7_000_000, span, 1),
            None,
            "the same place and span, as much as it counts"
        );
    }
}
