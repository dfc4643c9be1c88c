//! From an item to the bits that stand for it: the same in every process, release and language.

use xxhash_rust::xxh3::xxh3_128;

use super::layout::Layout;

/// Where an item belongs in a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// The number of its key.
    pub(crate) shard: u32,
    hashes: u32,
    /// Of one array.
    bits: u64,
    hash: u128,
}

impl Probe {
    pub(crate) fn new(layout: &Layout, item: &[u8]) -> Self {
        let hash = xxh3_128(item);
        let shard = ((hash >> 96) * u128::from(layout.shards)) >> 32;
        Self { shard: shard as u32, hashes: layout.hashes, bits: layout.bits, hash }
    }

    /// The bits that stand for the item, in an array of its shard.
    pub(crate) fn positions(&self) -> impl Iterator<Item = u64> {
        let Self { hashes, bits, hash, .. } = *self;
        let (mut x, mut y) = (hash as u64, (hash >> 64) as u64);
        (1..=u64::from(hashes)).map(move |i| {
            let position = x % bits;
            x = x.wrapping_add(y);
            y = y.wrapping_add(i);
            position
        })
    }

    /// What tells items from each other; those with the same are the same to the filter.
    pub(crate) fn hash(&self) -> u128 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in the documentation of the module; another outcome would make filters unreadable that are stored.
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
        check(b"", (1, 1_000_003), empty, 0, [768_477, 131_928, 144_696, 157_466]);
        check(b"user-7", (1, 1_000_003), user, 0, [550_942, 583_266, 966_278, 998_605]);
        check(b"user-7", (5, 1 << 29), user, 2, [522_995_266, 156_658_101, 327_191_849, 497_725_599]);
        check(&[0, 255, 0], (64, 1_000_003), bytes, 58, [759_233, 289_855, 820_481, 351_106]);
    }

    #[test]
    fn items_are_spread_evenly_over_shards() {
        let layout = Layout::new(5, 1 << 20, 3, 0);
        let mut counts = [0_u32; 5];
        for i in 0..100_000_u32 {
            counts[Probe::new(&layout, &i.to_le_bytes()).shard as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (19_300..20_700).contains(&count)), "{counts:?}");
    }
}
