//! The handled items of one bucket in memory: the twin of `lua/exact.lua`.

use std::collections::HashSet;

use super::layout::{Digest, Layout, RING};
use crate::store::Cell;

/// The slices of a bucket. Slice n is in slot n % 3.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket([Slot; RING as usize]);

#[derive(Clone, Debug, Default)]
struct Slot {
    slice: i64,
    /// When the slice expires in Redis, µs; 0: the slot is empty.
    ends: i64,
    digests: HashSet<[u8; 16]>,
}

impl Bucket {
    /// Returns whether an item was handled within the window. A later slice, from before the clock was set back,
    /// counts.
    pub(super) fn contains(&self, layout: &Layout, digest: &Digest, now: i64) -> bool {
        let oldest = layout.slice_at(digest, now) + 1 - RING;
        self.0.iter().any(|slot| {
            slot.ends > 0 && slot.slice >= oldest && slot.digests.contains(&*digest.bytes)
        })
    }

    /// Records that an item was handled.
    pub(super) fn insert(&mut self, layout: &Layout, digest: &Digest, now: i64) {
        self.enter(layout, digest, now)
            .digests
            .insert(*digest.bytes);
    }

    /// Removes an item. Returns whether it was stored.
    pub(super) fn remove(&mut self, digest: &Digest) -> bool {
        let removed = self
            .0
            .iter_mut()
            .filter_map(|slot| slot.digests.remove(&*digest.bytes).then_some(()));
        removed.count() > 0
    }

    /// Makes sure that the current slice exists.
    pub(super) fn reserve(&mut self, layout: &Layout, digest: &Digest, now: i64) {
        self.enter(layout, digest, now);
    }

    /// Drops the slices that have expired in Redis.
    #[cfg(test)]
    pub(super) fn expire(&mut self, now: i64) {
        self.0
            .iter_mut()
            .filter(|slot| slot.ends <= now)
            .for_each(|slot| *slot = Slot::default());
    }

    fn enter(&mut self, layout: &Layout, digest: &Digest, now: i64) -> &mut Slot {
        let slice = layout.slice_at(digest, now);
        let slot = &mut self.0[slice.rem_euclid(RING) as usize];
        if slot.ends == 0 || slot.slice < slice {
            slot.digests = HashSet::new();
        }
        if slot.ends == 0 || slot.slice != slice {
            // The digests of a later slice, from before the clock was set back, move to this slice.
            (slot.slice, slot.ends) = (slice, layout.end_of(digest, slice, now));
        }
        slot
    }
}

impl Cell for Bucket {
    fn is_idle(&self, now: i64) -> bool {
        self.0.iter().all(|slot| slot.ends <= now)
    }

    fn heap_bytes(&self) -> usize {
        self.0
            .iter()
            .map(|slot| slot.digests.capacity() * size_of::<[u8; 16]>())
            .sum()
    }
}
