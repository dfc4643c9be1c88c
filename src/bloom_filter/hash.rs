//! Maps an item to the bits that stand for it. The mapping is the same in every process, release and language.

use xxhash_rust::xxh3::xxh3_128;

use super::layout::Layout;
use crate::store::Arguments;

/// The multiplier of D. E. Knuth's MMIX generator, which generates the positions. Its high bits depend on all 128
/// bits of the hash, so small filters also keep their rates. With double hashing they would not.
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
        let (mut x, y) = (hash as u64, (hash >> 64) as u64);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The same values as in the documentation of the module. With other values, stored filters would be
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
