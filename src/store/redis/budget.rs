//! The bound on the operations that wait in the queues of a runtime.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The number of operations and bytes that may wait in all queues of a runtime. The operations are in the upper bits of
/// one number, and their bytes in the lower bits, so that they change together.
#[derive(Debug)]
pub(super) struct Budget {
    waiting: AtomicU64,
    operations: u64,
    bytes: u64,
}

/// The operations and bytes of an operation or a batch, encoded as in [`Budget`].
pub(super) type Weight = u64;

const BYTES: u32 = 40;
pub(in crate::store) const MOST_OPERATIONS: usize = 1 << 22;
pub(in crate::store) const MOST_BYTES: usize = 1 << 38;

/// The bytes that a waiting operation counts besides its key and payload: about the size of its entry in a batch.
const PLACE: usize = 256;

pub(super) fn weight(bytes: usize) -> Weight {
    (1 << BYTES) | (bytes + PLACE).min(MOST_BYTES) as u64
}

impl Budget {
    pub(super) fn new(operations: usize, bytes: usize) -> Self {
        Self {
            waiting: AtomicU64::new(0),
            operations: operations as u64,
            bytes: bytes as u64,
        }
    }

    /// Reserves budget, if there is enough.
    pub(super) fn take(&self, weight: Weight) -> bool {
        let before = self.waiting.fetch_add(weight, Ordering::Relaxed);
        let fits = (before >> BYTES) < self.operations
            && (before & ((1 << BYTES) - 1)) + (weight & ((1 << BYTES) - 1)) <= self.bytes;
        if !fits {
            self.give_back(weight);
        }
        fits
    }

    pub(super) fn give_back(&self, weight: Weight) {
        self.waiting.fetch_sub(weight, Ordering::Relaxed);
    }

    /// The number of waiting operations.
    pub(super) fn operations(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed) >> BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_bytes_are_bounded() {
        let budget = Budget::new(2, 10 * PLACE);
        assert!(budget.take(weight(0)) && budget.take(weight(0)));
        assert!(!budget.take(weight(0)), "two operations");
        budget.give_back(2 * weight(0));
        assert_eq!(budget.operations(), 0);
        assert!(budget.take(weight(9 * PLACE)));
        assert!(!budget.take(weight(0)), "ten places");
        budget.give_back(weight(9 * PLACE));
        assert!(budget.take(weight(0)));
    }

    #[test]
    fn the_largest_operations_do_not_run_into_each_other() {
        let budget = Budget::new(MOST_OPERATIONS, MOST_BYTES);
        assert!(budget.take(weight(MOST_BYTES - PLACE)));
        assert!(!budget.take(weight(usize::MAX / 2)));
        assert_eq!(budget.operations(), 1);
    }
}
