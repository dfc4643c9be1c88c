//! One shard of a namespace: a hash table that is swept before it grows.

use hashbrown::HashTable;

use super::clock::Checks;
use crate::Key;
use crate::store::Cell;

#[derive(Debug)]
pub(super) struct Shard<C> {
    table: HashTable<Entry<C>>,
    /// The time of the last step.
    pub(super) seen: i64,
    pub(super) checks: Checks,
}

/// The state of a key. The hash is stored, so that the cost of moving a cell does not depend on the length of its
/// key.
#[derive(Debug)]
pub(super) struct Entry<C> {
    hash: u64,
    key: Key,
    pub(super) cell: C,
}

impl<C: Cell> Entry<C> {
    /// The bytes that the store counts for it. A table has room for up to twice as many entries as it has.
    pub(super) fn bytes(&self) -> usize {
        Self::bytes_of(self.key.as_bytes()) + self.cell.heap_bytes()
    }

    /// The same for a key whose cell has allocated nothing.
    pub(super) fn bytes_of(key: &[u8]) -> usize {
        2 * size_of::<Self>()
            + if key.len() > Key::INLINE {
                key.len()
            } else {
                0
            }
    }
}

pub(super) type Occupied<'a, C> = hashbrown::hash_table::OccupiedEntry<'a, Entry<C>>;

impl<C> Shard<C> {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The number of cells for which memory is allocated.
    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = (&Key, &C)> {
        self.table.iter().map(|entry| (&entry.key, &entry.cell))
    }
}

impl<C: Cell> Shard<C> {
    #[inline]
    pub(super) fn find(&mut self, hash: u64, key: &[u8]) -> Option<Occupied<'_, C>> {
        let is_it = |entry: &Entry<C>| entry.hash == hash && entry.key.as_bytes() == key;
        self.table.find_entry(hash, is_it).ok()
    }

    /// Inserts a cell for a key that has none. A full shard is swept before it grows. Returns the expired cells, which
    /// the caller drops without the lock.
    pub(super) fn insert(&mut self, hash: u64, key: &[u8], cell: C, now: i64) -> Vec<Entry<C>> {
        let mut expired = Vec::new();
        if self.len() == self.capacity() {
            expired = self.sweep(now);
            // With less room than this, the next sweep would be due too soon.
            self.table.reserve(self.len() / 4 + 1, |entry| entry.hash);
        }
        self.table.insert_unique(
            hash,
            Entry {
                hash,
                key: Key::new(key),
                cell,
            },
            |entry| entry.hash,
        );
        expired
    }

    /// The bytes that are counted for its cells.
    pub(super) fn bytes(&self) -> usize {
        self.table.iter().map(Entry::bytes).sum()
    }

    /// Removes the expired cells. Returns them, so that the caller drops them without the lock.
    pub(super) fn sweep(&mut self, now: i64) -> Vec<Entry<C>> {
        self.table
            .extract_if(|entry| entry.cell.is_idle(now))
            .collect()
    }

    /// Frees memory if there is far too much for the cells.
    pub(super) fn shrink(&mut self) {
        if self.len() <= self.capacity() / 4 {
            self.table.shrink_to(2 * self.len(), |entry| entry.hash);
        }
    }
}

impl<C> Default for Shard<C> {
    fn default() -> Self {
        Self {
            table: HashTable::new(),
            seen: i64::MIN,
            checks: Checks::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::in_memory::tests::Until;

    fn hash(number: u64) -> u64 {
        std::hash::BuildHasher::hash_one(
            &std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::new(),
            number,
        )
    }

    #[test]
    fn keys_are_found_while_the_shard_grows_and_shrinks() {
        let mut shard = Shard::<Until>::default();
        for i in 0..50_000_u64 {
            let expired = shard.insert(
                hash(i),
                &i.to_le_bytes(),
                Until(i64::MAX - (i % 10 != 0) as i64),
                0,
            );
            assert!(expired.is_empty());
        }
        for i in 0..50_000_u64 {
            assert!(shard.find(hash(i), &i.to_le_bytes()).is_some(), "{i}");
        }
        assert_eq!(
            (shard.sweep(i64::MAX - 1).len(), shard.len()),
            (45_000, 5_000)
        );
        shard.shrink();
        assert!(shard.capacity() <= 8 * 5_000, "{}", shard.capacity());
        for i in 0..50_000_u64 {
            assert_eq!(
                shard.find(hash(i), &i.to_le_bytes()).is_some(),
                i % 10 == 0,
                "{i}"
            );
        }
        shard.sweep(i64::MAX);
        shard.shrink();
        assert_eq!((shard.len(), shard.capacity()), (0, 0));
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut shard = Shard::<Until>::default();
        for key in [b"a", b"b"] {
            assert!(shard.find(7, key).is_none());
            shard.insert(7, key, Until(i64::from(key[0])), 0);
        }
        for key in [b"a", b"b"] {
            assert_eq!(shard.find(7, key).unwrap().get().cell.0, i64::from(key[0]));
        }
        assert!(shard.find(8, b"a").is_none());
    }

    #[test]
    fn a_full_shard_is_swept_before_it_grows() {
        let mut shard = Shard::<Until>::default();
        for i in 0..100_000_u64 {
            drop(shard.insert(hash(i), &i.to_le_bytes(), Until(i as i64 + 1000), i as i64));
        }
        assert!(shard.len() <= 4 * 1400, "{}", shard.len());
    }
}
