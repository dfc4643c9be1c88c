//! Prefetched tokens in memory: two batches, each with the time until which its tokens may be used.

use crate::sync::atomic::{AtomicU64, Ordering};

/// A batch is one number: the number of tokens in the low bits, and above them the deadline in units of 256 µs, for
/// 142 years from the start of the host.
const COUNT_BITS: u32 = 20;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const TICK_BITS: u32 = 8;

/// The maximum number of tokens of a batch.
pub(super) const MOST: i64 = COUNT as i64;

#[derive(Default)]
pub(super) struct Slots([AtomicU64; 2]);

pub(super) const SLOTS: usize = 2;

/// Tokens taken from a batch.
pub(super) struct Taken {
    pub(super) slot: usize,
    pub(super) count: i64,
    /// The number of tokens left in the batch.
    pub(super) left: i64,
    /// The tokens may be used before this time, µs.
    pub(super) deadline: i64,
}

impl Slots {
    /// Puts a batch into an empty slot. Its tokens may be used before `deadline` (µs).
    pub(super) fn put(&self, slot: usize, count: i64, deadline: i64) {
        let ticks = deadline.max(0).unsigned_abs() >> TICK_BITS;
        let count = count.clamp(0, MOST).unsigned_abs();
        self.0[slot].store(ticks << COUNT_BITS | count, Ordering::Release);
    }

    /// Takes tokens from the batch with the earliest deadline that has at least `cost` tokens: the `2^share`-th
    /// part of the batch, or `cost` if that is more. The deadline and the number of tokens are one atomic number,
    /// so nothing is taken from a replaced batch.
    pub(super) fn take(&self, now: i64, cost: i64, share: u32) -> Option<Taken> {
        let (tick, cost) = (now.max(0).unsigned_abs() >> TICK_BITS, cost.unsigned_abs());
        let mut values = [
            self.0[0].load(Ordering::Acquire),
            self.0[1].load(Ordering::Acquire),
        ];
        let usable = |value: u64| value >> COUNT_BITS > tick && value & COUNT >= cost;
        let order = if values[1] >> COUNT_BITS < values[0] >> COUNT_BITS {
            [1, 0]
        } else {
            [0, 1]
        };
        for slot in order {
            while usable(values[slot]) {
                let old = values[slot];
                let count = cost.max((old & COUNT) >> share);
                let new = old - count;
                match self.0[slot].compare_exchange_weak(
                    old,
                    new,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => {
                        let deadline = ((new >> COUNT_BITS) << TICK_BITS) as i64;
                        return Some(Taken {
                            slot,
                            count: count as i64,
                            left: (new & COUNT) as i64,
                            deadline,
                        });
                    }
                    Err(current) => values[slot] = current,
                }
            }
        }
        None
    }

    /// The number of tokens of a batch, expired or not.
    pub(super) fn left(&self, slot: usize) -> i64 {
        (self.0[slot].load(Ordering::Acquire) & COUNT) as i64
    }

    /// Takes all tokens of a batch.
    pub(super) fn empty(&self, slot: usize) -> i64 {
        (self.0[slot].swap(0, Ordering::AcqRel) & COUNT) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_that_ends_first_is_used_first() {
        let slots = Slots::default();
        slots.put(0, 3, 2_000);
        slots.put(1, 3, 1_000);
        let take = |now, cost| {
            slots
                .take(now, cost, 6)
                .map(|taken| (taken.slot, taken.left))
        };
        assert_eq!(take(0, 2), Some((1, 1)));
        assert_eq!(take(0, 2), Some((0, 1)), "none is split");
        assert_eq!(take(0, 2), None);
        assert_eq!(take(1_000, 1), Some((0, 0)), "the other has ended");
        assert_eq!((slots.left(0), slots.empty(1), slots.left(1)), (0, 1, 0));
        slots.put(0, 1, 2_000);
        slots.put(1, 1, 3_000);
        assert_eq!(
            (take(0, 1), take(0, 1), take(0, 1)),
            (Some((0, 0)), Some((1, 0)), None)
        );
        slots.put(0, 1, 2_010);
        assert!(
            slots.take(2_000, 1, 6).is_none(),
            "a tick too soon rather than too late"
        );
        assert!(
            slots
                .take(1_791, 1, 6)
                .is_some_and(|taken| (taken.deadline, taken.count) == (1_792, 1))
        );
        slots.put(0, 640, 2_000);
        assert!(
            slots
                .take(0, 1, 6)
                .is_some_and(|taken| (taken.count, taken.left) == (10, 630))
        );
        let century = 100 * 365 * 86_400 * 1_000_000;
        slots.put(0, 1, century + 2_000);
        assert!(
            slots
                .take(century, 1, 6)
                .is_some_and(|taken| taken.deadline > century)
        );
    }
}
