//! The bits of a filter in memory: the mapping of an item to bits, and the bits of one shard.
//!
//! The mapping of items to bits is the same in every process, release and language. The steps on a shard do the same as
//! `lua/bloom.lua`.

use xxhash_rust::xxh3::xxh3_128;

use crate::bloom_filter::layout::{Layout, Mismatch, SAMPLE};
use crate::store::operation::{Arguments, Cell};

/// The multiplier of D. E. Knuth's MMIX generator, which generates the positions. Its high bits depend on all 128 bits
/// of the hash, so small filters keep their rates too. With double hashing they would not.
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// The place of an item in a filter: its key and its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// The number of its key.
    pub(crate) shard: u32,
    hashes: u32,
    /// The number of bits of one array.
    bits: u64,
    hash: u128,
}

impl Probe {
    pub(crate) fn new(layout: &Layout, item: &[u8]) -> Self {
        let hash = xxh3_128(item);
        let shard = ((hash >> 96) * u128::from(layout.shards)) >> 32;
        Self {
            shard: shard as u32,
            hashes: layout.hashes,
            bits: layout.bits,
            hash,
        }
    }

    /// Returns the positions of the item's bits in an array of its shard.
    pub(crate) fn positions(&self) -> impl Iterator<Item = u64> {
        let Self {
            hashes, bits, hash, ..
        } = *self;
        let mut x = hash as u64;
        let y = (hash >> 64) as u64;
        (0..hashes).map(move |_| {
            let position = (u128::from(x) * u128::from(bits)) >> 64;
            x = x.wrapping_mul(MULTIPLIER).wrapping_add(y);
            position as u64
        })
    }

    /// Writes the positions, as arguments of a run.
    pub(crate) fn write(&self, call: &mut Arguments<'_>) {
        self.positions()
            .for_each(|position| call.integer(position as i64));
    }

    /// Returns the hash of the item. Items with the same hash are the same to the filter.
    pub(crate) fn hash(&self) -> u128 {
        self.hash
    }
}

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

/// How long the configuration is kept after none of its generations counts (µs). The margin allows for clocks that are
/// set.
const MARGIN: i64 = 2 * 3_600_000_000;

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
            let word = &mut array[position as usize / 64];
            let bit = 1 << (position % 64);
            fresh |= *word & bit == 0;
            *word |= bit;
        }
        Ok(fresh && !before)
    }

    /// Creates the filter if it does not exist, and begins the current generation. Returns that generation.
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

    /// Returns how many bits are set in the current generation, and in the previous one.
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

    /// All bits count from the beginning, so that there is always memory for a handled item.
    fn heap_bytes(&self) -> usize {
        let Some(Stored { layout, .. }) = &self.stored else {
            return 0;
        };
        let arrays = if layout.forget > 0 { 2 } else { 1 };
        usize::try_from(layout.bits.div_ceil(8))
            .map_or(usize::MAX, |bytes| bytes.saturating_mul(arrays))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same values as in the page `wire_format`. With other values, stored filters would be
    /// unreadable.
    #[test]
    fn test_vectors() {
        let check = |item: &[u8], (shards, bits), hash, shard, positions: [u64; 4]| {
            let probe = Probe::new(&Layout::new(shards, bits, 4, 0), item);
            assert_eq!((probe.hash, probe.shard), (hash, shard), "{item:?}");
            assert_eq!(probe.positions().collect::<Vec<_>>(), positions, "{item:?}");
        };
        let empty = 0x99aa06d3014798d86001c324468d497f;
        let user = 0x6eeef1a6ea2a2373c9d2e0a4ff2c4642;
        let bytes = 0xebcdd8b056f701bae0d991af43624afa;
        check(
            b"",
            (1, 1_000_003),
            empty,
            0,
            [375_028, 675_436, 773_159, 564_661],
        );
        check(
            b"user-7",
            (1, 1_000_003),
            user,
            0,
            [788_376, 229_938, 723_424, 154_789],
        );
        check(
            b"user-7",
            (5, 1 << 29),
            user,
            2,
            [423_255_060, 123_446_927, 388_384_281, 83_101_697],
        );
        check(
            &[0, 255, 0],
            (64, 1_000_003),
            bytes,
            58,
            [878_322, 395_223, 289_000, 718_049],
        );
    }

    /// Double hashing has thirty times too many false positives here.
    #[test]
    fn small_filters_keep_their_rate() {
        let layout = Layout::new(1, 1024, 20, 0);
        let probe = |item: u64| Probe::new(&layout, &item.to_le_bytes());
        let mut wrong = 0;
        for filter in 0..50 {
            let mut set = [false; 1024];
            let first = filter << 32;
            for item in first..first + 30 {
                probe(item)
                    .positions()
                    .for_each(|bit| set[bit as usize] = true);
            }
            let absent = first + 30..first + 40_030;
            wrong += absent
                .filter(|&item| probe(item).positions().all(|bit| set[bit as usize]))
                .count();
        }
        // A rate of 10⁻⁶ of two million items is expected.
        assert!(wrong <= 5, "{wrong}");
    }

    #[test]
    fn items_are_spread_evenly_over_shards() {
        let layout = Layout::new(5, 1 << 20, 3, 0);
        let mut counts = [0_u32; 5];
        for i in 0..100_000_u32 {
            counts[Probe::new(&layout, &i.to_le_bytes()).shard as usize] += 1;
        }
        assert!(
            counts
                .iter()
                .all(|&count| (19_300..20_700).contains(&count)),
            "{counts:?}"
        );
    }
}
