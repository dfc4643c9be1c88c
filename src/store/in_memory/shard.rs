//! One shard of a namespace: a hash table that grows and shrinks in small steps.
//!
//! It uses linear hashing (Litwin 1980) over many small tables. When the shard has too many cells for its tables,
//! *one* table is split in two. When it has few cells, the last table is merged into the table that it was split
//! from. So no step moves more cells than one table has, regardless of the total, and memory is freed table by
//! table.

use hashbrown::HashTable;

use super::clock::Checks;
use crate::Key;
use crate::store::Cell;

/// The maximum average number of cells in a table. A table that is yet to be split has up to about twice as many
/// cells, which fit in 1024 slots (896 cells). A table that was split has up to about this many, which fit in 512
/// slots (448 cells).
const PER_TABLE: usize = 400;

#[derive(Debug)]
pub(super) struct Shard<C> {
    tables: Vec<HashTable<Entry<C>>>,
    len: usize,
    /// The table that was swept most recently, the last time the shard was full.
    hand: usize,
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

pub(super) type Occupied<'a, C> = hashbrown::hash_table::OccupiedEntry<'a, Entry<C>>;

impl<C> Shard<C> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of cells in a table; `None` if there is no such table.
    pub(super) fn cells_in(&self, table: usize) -> Option<usize> {
        self.tables.get(table).map(HashTable::len)
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = (&Key, &C)> {
        self.tables.iter().flatten().map(|entry| (&entry.key, &entry.cell))
    }

    /// The number of cells for which memory is allocated.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.tables.iter().map(HashTable::capacity).sum()
    }
}

impl<C: Cell> Shard<C> {
    #[inline]
    pub(super) fn find(&mut self, hash: u64, key: &[u8]) -> Option<Occupied<'_, C>> {
        let place = place(hash, self.tables.len());
        let is_it = |entry: &Entry<C>| entry.hash == hash && entry.key.as_bytes() == key;
        self.tables.get_mut(place)?.find_entry(hash, is_it).ok()
    }

    /// Removes the cell of a key. Returns whether there was one.
    pub(super) fn remove(&mut self, hash: u64, key: &[u8]) -> bool {
        let found = self.find(hash, key).map(|entry| drop(entry.remove()));
        self.len -= usize::from(found.is_some());
        found.is_some()
    }

    /// Inserts a cell for a key that has none. A full shard is swept before it grows, one table at a time. Returns
    /// the expired cells, which the caller drops without the lock.
    pub(super) fn insert(&mut self, hash: u64, key: &[u8], cell: C, now: i64) -> Vec<Entry<C>> {
        let mut expired = Vec::new();
        if self.tables.is_empty() {
            self.tables.push(HashTable::new());
        } else if self.len >= PER_TABLE * self.tables.len() {
            self.hand = if self.hand + 1 < self.tables.len() { self.hand + 1 } else { 0 };
            expired = self.sweep(self.hand, now);
            // If a sweep frees less than this, the next one would be due too soon.
            if expired.len() < PER_TABLE / 4 {
                self.split();
            }
        }
        let table = place(hash, self.tables.len());
        self.tables[table].insert_unique(hash, Entry { hash, key: Key::new(key), cell }, |entry| entry.hash);
        self.len += 1;
        expired
    }

    /// Removes the expired cells from a table. Returns them, so that the caller drops them without the lock.
    pub(super) fn sweep(&mut self, table: usize, now: i64) -> Vec<Entry<C>> {
        let Some(table) = self.tables.get_mut(table) else { return Vec::new() };
        let expired: Vec<_> = table.extract_if(|entry| entry.cell.is_idle(now)).collect();
        self.len -= expired.len();
        if table.len() < table.capacity() / 4 {
            table.shrink_to(2 * table.len(), |entry| entry.hash);
        }
        expired
    }

    /// Merges two tables if there are far too many tables for the cells. Returns whether this was so.
    pub(super) fn merge(&mut self) -> bool {
        if self.len == 0 && !self.tables.is_empty() {
            self.tables = Vec::new();
            return true;
        }
        if self.tables.len() < 2 || self.len >= PER_TABLE / 4 * self.tables.len() {
            return false;
        }
        let Some(last) = self.tables.pop() else { return false };
        let origin = origin(self.tables.len());
        let origin = &mut self.tables[origin];
        origin.reserve(last.len(), |entry| entry.hash);
        for entry in last {
            origin.insert_unique(entry.hash, entry, |entry| entry.hash);
        }
        if self.tables.len() < self.tables.capacity() / 4 {
            self.tables.shrink_to(2 * self.tables.len());
        }
        true
    }

    fn split(&mut self) {
        let (new, tables) = (self.tables.len(), self.tables.len() + 1);
        let origin = &mut self.tables[origin(new)];
        let mut table = HashTable::with_capacity(origin.len() / 2);
        for entry in origin.extract_if(|entry| place(entry.hash, tables) == new) {
            table.insert_unique(entry.hash, entry, |entry| entry.hash);
        }
        origin.shrink_to(origin.len(), |entry| entry.hash);
        self.tables.push(table);
    }
}

/// The table in which a hash belongs, out of `tables`.
#[inline]
fn place(hash: u64, tables: usize) -> usize {
    // Within a table, the lowest and the highest bits are used.
    let bits = (hash >> 12) as usize;
    let span = tables.next_power_of_two();
    let place = bits & (span - 1);
    if place < tables { place } else { place & (span / 2).saturating_sub(1) }
}

/// The table that a table was split from, and is merged into.
fn origin(table: usize) -> usize {
    table & !(1 << table.checked_ilog2().unwrap_or(0))
}

impl<C> Default for Shard<C> {
    fn default() -> Self {
        Self { tables: Vec::new(), len: 0, hand: 0, seen: i64::MIN, checks: Checks::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Until(i64);

    impl Cell for Until {
        fn is_idle(&self, now: i64) -> bool {
            self.0 <= now
        }
    }

    fn hash(number: u64) -> u64 {
        std::hash::BuildHasher::hash_one(
            &std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::new(),
            number,
        )
    }

    #[test]
    fn keys_are_found_through_splits_and_merges() {
        let mut shard = Shard::<Until>::default();
        let mut largest = 0;
        for i in 0..50_000_u64 {
            let expired = shard.insert(hash(i), &i.to_le_bytes(), Until(i64::MAX - (i % 10 != 0) as i64), 0);
            assert!(expired.is_empty());
            largest = largest.max(shard.tables.iter().map(HashTable::capacity).max().unwrap_or(0));
        }
        assert_eq!(shard.tables.len(), 50_000_usize.div_ceil(PER_TABLE));
        assert!(largest <= 1792, "no table moves many cells when it grows: {largest}");
        for i in 0..50_000_u64 {
            assert!(shard.find(hash(i), &i.to_le_bytes()).is_some(), "{i}");
        }
        let mut expired = 0;
        for table in 0..shard.tables.len() {
            expired += shard.sweep(table, i64::MAX - 1).len();
        }
        assert_eq!((expired, shard.len()), (45_000, 5_000));
        while shard.merge() {}
        assert!(shard.capacity() <= 8 * 5_000, "{}", shard.capacity());
        for i in 0..50_000_u64 {
            assert_eq!(shard.find(hash(i), &i.to_le_bytes()).is_some(), i % 10 == 0, "{i}");
        }
        for table in 0..shard.tables.len() {
            shard.sweep(table, i64::MAX);
        }
        while shard.merge() {}
        assert_eq!((shard.len(), shard.tables.capacity()), (0, 0));
    }

    #[test]
    fn a_full_shard_is_swept_before_it_grows() {
        let mut shard = Shard::<Until>::default();
        for i in 0..100_000_u64 {
            drop(shard.insert(hash(i), &i.to_le_bytes(), Until(i as i64 + 1000), i as i64));
        }
        assert!(shard.len() <= 4 * (1000 + PER_TABLE), "{}", shard.len());
    }
}
