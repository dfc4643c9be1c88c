//! One shard of a filter in memory: the twin of `lua/bloom.lua`.

use super::hash::Probe;
use super::layout::Layout;
use crate::bloom_filter::stored_layout::Mismatch;
use crate::store::Cell;

/// One shard of a filter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    stored: Option<Stored>,
    /// Generation g uses array g % 2. An array is empty until an item is inserted.
    arrays: [Vec<u64>; 2],
}

#[derive(Clone, Debug)]
struct Stored {
    layout: Layout,
    /// The newest generation that has an item.
    generation: i64,
    /// When Redis deletes the configuration, µs; `None`: never.
    expires: Option<i64>,
}

/// How long the configuration is kept after none of its generations counts any more (µs). The margin protects
/// against clocks that are set.
const MARGIN: i64 = 2 * 3_600_000_000;

/// The size of the sample: the bytes at the beginning of an array that are counted to estimate how full it is.
pub(super) const SAMPLE: usize = 4096;

impl Bits {
    /// Returns whether an item may have been inserted.
    pub(crate) fn contains(
        &self,
        layout: &Layout,
        probe: &Probe,
        now: i64,
    ) -> Result<bool, Mismatch> {
        Ok(self.generation_of(layout, probe, now)?.is_some())
    }

    /// Returns the newest generation in which an item may have been inserted.
    pub(crate) fn generation_of(
        &self,
        layout: &Layout,
        probe: &Probe,
        now: i64,
    ) -> Result<Option<i64>, Mismatch> {
        let current = self.current(layout, now)?;
        let oldest = if layout.forget > 0 {
            current - 1
        } else {
            current
        };
        Ok([current, oldest]
            .into_iter()
            .find(|generation| self.has(*generation, probe)))
    }

    /// Returns how many bits are set in the [sample](SAMPLE) of a generation's array.
    pub(crate) fn sample(&self, generation: i64) -> u64 {
        let words = self.array(generation).iter().take(SAMPLE / 8);
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the stored text of the layout, and how many bits are set in the sample of each array.
    pub(super) fn look(&self, now: i64) -> Option<(String, [u64; 2])> {
        let stored = self.stored.as_ref().filter(|_| !self.is_idle(now))?;
        let newest = stored.generation;
        let mut ones = [0; 2];
        [newest, newest - 1]
            .into_iter()
            .for_each(|one| ones[slot(one)] = self.sample(one));
        Some((stored.layout.stored(newest), ones))
    }

    /// Inserts an item. Returns whether it was not contained before.
    pub(crate) fn insert(
        &mut self,
        layout: &Layout,
        probe: &Probe,
        now: i64,
    ) -> Result<bool, Mismatch> {
        let current = self.enter(layout, now)?;
        let before = layout.forget > 0 && self.has(current - 1, probe);
        let array = &mut self.arrays[slot(current)];
        if array.is_empty() {
            *array = vec![0; layout.bits.div_ceil(64) as usize];
        }
        let mut fresh = false;
        for position in probe.positions() {
            let (word, bit) = (&mut array[position as usize / 64], 1 << (position % 64));
            fresh |= *word & bit == 0;
            *word |= bit;
        }
        Ok(fresh && !before)
    }

    /// Makes sure that the filter exists and is in the current generation. Returns that generation.
    pub(crate) fn enter(&mut self, layout: &Layout, now: i64) -> Result<i64, Mismatch> {
        let current = self.current(layout, now)?;
        let since = self
            .stored
            .as_ref()
            .map_or(0, |stored| current - stored.generation);
        if self.stored.is_none() || since > 0 {
            let expires = (layout.forget > 0).then(|| now + 5 * layout.forget + MARGIN);
            self.stored = Some(Stored {
                layout: layout.clone(),
                generation: current,
                expires,
            });
        }
        if since > 0 {
            self.arrays[slot(current)] = Vec::new();
        }
        if since > 1 {
            self.arrays[slot(current - 1)] = Vec::new();
        }
        Ok(current)
    }

    /// Returns how many bits are set in the current generation, and in the one before.
    pub(crate) fn count(&self, layout: &Layout, now: i64) -> Result<[u64; 2], Mismatch> {
        let current = self.current(layout, now)?;
        let before = if layout.forget > 0 {
            self.ones(current - 1)
        } else {
            0
        };
        Ok([self.ones(current), before])
    }

    /// Deletes all items and the configuration.
    pub(crate) fn clear(&mut self, layout: &Layout, now: i64) -> Result<(), Mismatch> {
        self.current(layout, now)?;
        *self = Self::default();
        Ok(())
    }

    /// Returns the current generation. It never decreases.
    fn current(&self, layout: &Layout, now: i64) -> Result<i64, Mismatch> {
        let current = layout.generation(now);
        match &self.stored {
            None => Ok(current),
            Some(stored) if stored.layout == *layout => Ok(current.max(stored.generation)),
            Some(stored) => Err(Mismatch(stored.layout.stored(stored.generation))),
        }
    }

    /// Returns the array of a generation, empty if it does not exist.
    fn array(&self, generation: i64) -> &[u64] {
        let newest = self.stored.as_ref().map(|stored| stored.generation);
        let there = newest.is_some_and(|newest| generation == newest || generation == newest - 1);
        if there {
            &self.arrays[slot(generation)]
        } else {
            &[]
        }
    }

    fn has(&self, generation: i64, probe: &Probe) -> bool {
        let array = self.array(generation);
        let set = |position: u64| array[position as usize / 64] >> (position % 64) & 1 == 1;
        !array.is_empty() && probe.positions().all(set)
    }

    fn ones(&self, generation: i64) -> u64 {
        self.array(generation)
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    }
}

pub(super) fn slot(generation: i64) -> usize {
    generation.rem_euclid(2) as usize
}

impl Cell for Bits {
    fn is_idle(&self, now: i64) -> bool {
        self.stored
            .as_ref()
            .is_none_or(|stored| stored.expires.is_some_and(|expires| expires <= now))
    }

    /// All bits count from the beginning, so that an item that is handled fits.
    fn heap_bytes(&self) -> usize {
        let Some(Stored { layout, .. }) = &self.stored else {
            return 0;
        };
        let arrays = if layout.forget > 0 { 2 } else { 1 };
        usize::try_from(layout.bits.div_ceil(8))
            .map_or(usize::MAX, |bytes| bytes.saturating_mul(arrays))
    }
}
