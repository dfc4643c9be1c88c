//! The cells of one namespace: the state of each key, in shards, and steps on one cell.

use std::hash::BuildHasher as _;
use std::sync::{Arc, PoisonError, Weak};

use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::store::memory::bound::Bound;
use crate::store::memory::clock::{Checks, Clock};
use crate::store::memory::sweeper::{By, Sweep, Sweeper, Visit};
use crate::store::notifier::{Notifier, Push};
use crate::store::operation::Cell;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock, try_lock};

/// The parts that all namespaces of a store share.
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) notifier: Arc<Notifier>,
    pub(super) bound: Bound,
    pub(super) sweeper: Arc<Sweeper>,
}

/// The cells of one namespace, in shards.
pub(crate) struct Cells<C> {
    pub(super) shared: Arc<Shared>,
    this: Weak<Self>,
    /// Whether these cells are in the list of the sweeper.
    listed: AtomicBool,
    hasher: DefaultHashBuilder,
    /// [`Shard::bytes`]
    bytes: fn(&Shard<C>) -> usize,
    pub(super) shards: Box<[Mutex<Shard<C>>]>,
}

/// The number of shards. A step or the sweeper may scan a shard, or move its cells, while it is locked. With this
/// number, that is 4000 of a million cells at a time.
const SHARDS: usize = if cfg!(interleavings) { 1 } else { 256 };

/// A visit of the sweeper ends after this number of shards, or of cells.
const PER_VISIT: usize = 64;

impl<C: Cell> Cells<C> {
    pub(super) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            shared,
            this: this.clone(),
            listed: AtomicBool::new(false),
            hasher: DefaultHashBuilder::default(),
            bytes: Shard::bytes,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        })
    }

    /// Applies one step to the cell of a key, under its lock, and delivers the pushes of the step.
    ///
    /// # Errors
    ///
    /// [`is_overloaded`](Error::is_overloaded) if the step would leave state for a new key in a full store. In this
    /// case nothing has changed.
    pub(crate) fn step<R>(
        &self,
        key: &[u8],
        step: impl FnOnce(&mut C, i64) -> R,
    ) -> Result<R, Error> {
        self.step_with(key, 0, step)
    }

    /// Like [`step`](Self::step), for a step that stores `payload` bytes, in addition to the cell itself.
    ///
    /// # Errors
    ///
    /// [`is_overloaded`](Error::is_overloaded), as for `step`, and also if a full store has no room for more bytes of
    /// the key.
    pub(crate) fn step_with<R>(
        &self,
        key: &[u8],
        payload: usize,
        step: impl FnOnce(&mut C, i64) -> R,
    ) -> Result<R, Error> {
        match self.step_locked(key, payload, step) {
            Ok((reply, pushes)) => {
                for push in pushes {
                    self.shared.notifier.deliver(push);
                }
                Ok(reply)
            }
            Err(error) => {
                self.tell_refused();
                Err(error)
            }
        }
    }

    /// Reports a refused step to telemetry. Must be called without a lock.
    pub(crate) fn tell_refused(&self) {
        self.shared.bound.refused();
    }

    /// Like [`step_with`](Self::step_with), within a step on a locked cell of another namespace. It delivers no pushes
    /// and does not report a refusal: call [`tell_refused`](Self::tell_refused) afterwards.
    pub(crate) fn step_among<R>(
        &self,
        key: &[u8],
        payload: usize,
        step: impl FnOnce(&mut C, i64) -> R,
    ) -> Result<R, Error> {
        let (reply, _) = self.step_locked(key, payload, step)?;
        Ok(reply)
    }

    /// Applies a step to the locked cell of a key. Returns the reply, and the pushes of the step.
    fn step_locked<R>(
        &self,
        key: &[u8],
        payload: usize,
        step: impl FnOnce(&mut C, i64) -> R,
    ) -> Result<(R, Vec<Push>), Error> {
        let (hash, shard) = self.locate(key);
        let mutex = &self.shards[shard];
        let bound = &self.shared.bound;
        let mut guard = lock(mutex);
        let mut now = self.now(&mut guard);
        let bytes = Entry::<C>::bytes_of(key) + payload;
        if !bound.has_room(1, bytes) && guard.find(hash, key).is_none() {
            drop(guard);
            bound.search(&self.shared.sweeper, now, 1, bytes);
            guard = lock(mutex);
            now = self.now(&mut guard);
        }
        let shard = &mut *guard;
        if let Some(mut entry) = shard.find(hash, key) {
            let cell = &mut entry.get_mut().cell;
            let before = cell.heap_bytes();
            let growth = payload.saturating_sub(before);
            if growth > 0 && !bound.has_room(0, growth) {
                self.shared.sweeper.press();
                return Err(bound.too_large.clone());
            }
            if cell.is_idle(now) {
                cell.clear();
            }
            let reply = step(cell, now);
            let pushes = cell.pushes();
            let after = cell.heap_bytes();
            if after != before {
                bound.changed(before, after);
            }
            if bound.is_tight() && cell.is_idle(now) {
                let bytes = entry.get().bytes();
                entry.remove();
                bound.give_back(1, bytes);
            }
            return Ok((reply, pushes));
        }
        let mut cell = C::default();
        let reply = step(&mut cell, now);
        let pushes = cell.pushes();
        if cell.is_idle(now) {
            return Ok((reply, pushes));
        }
        let bytes = Entry::<C>::bytes_of(key) + cell.heap_bytes();
        bound
            .take(bytes)
            .inspect_err(|_| self.shared.sweeper.press())?;
        let expired = shard.insert(hash, key, cell, now);
        drop(guard);
        bound.give_back(expired.len(), bytes_of(&expired));
        self.is_not_empty();
        Ok((reply, pushes))
    }

    /// Returns the hash of a key, and its shard. One hash is enough: within a shard, other bits of it are used.
    #[inline]
    pub(super) fn locate(&self, key: &[u8]) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        (hash, (hash >> 40) as usize % SHARDS)
    }

    /// Adds the cells to the list of the sweeper, if they are not in it.
    #[inline]
    pub(super) fn is_not_empty(&self) {
        if !self.listed.load(Ordering::Relaxed) {
            self.list();
        }
    }

    /// Returns the keys of the cells for which `shown` returns `true`. It locks one shard at a time.
    pub(crate) fn keys(&self, shown: impl Fn(&C, i64) -> bool) -> Vec<Key> {
        let keys_in = |shard: &Mutex<Shard<C>>| {
            let mut shard = lock(shard);
            let now = self.now(&mut shard);
            let cells = shard
                .cells()
                .filter(|(_, cell)| !cell.is_idle(now) && shown(cell, now));
            cells.map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(keys_in).collect()
    }

    pub(super) fn now(&self, shard: &mut Shard<C>) -> i64 {
        let now = self.shared.clock.of_step(&mut shard.checks);
        shard.seen = now;
        now
    }

    /// Returns the time of a step by the [clock of leases](clock), without reading a clock again.
    pub(crate) fn time_of_leases(&self, now: i64) -> Instant {
        clock::at(self.shared.clock.instant(now))
    }

    #[cold]
    fn list(&self) {
        if let Some(this) = self.this.upgrade() {
            self.shared.sweeper.list(this);
        }
    }

    /// The number of cells, and the number of cells for which memory is allocated.
    #[cfg(any(test, interleavings))]
    pub(super) fn size(&self) -> (usize, usize) {
        let shards = self.shards.iter().map(|shard| lock(shard));
        shards.fold((0, 0), |sum, shard| {
            (sum.0 + shard.len(), sum.1 + shard.capacity())
        })
    }
}

impl<C: Cell> Sweep for Cells<C> {
    fn sweep(&self, shard: &mut usize, by: By) -> Option<Visit> {
        let shards = self
            .shards
            .get(*shard..)
            .filter(|shards| !shards.is_empty())?;
        let mut visit = Visit::default();
        for mutex in shards.iter().take(PER_VISIT) {
            *shard += 1;
            let guard = match by {
                By::Step(_) => try_lock(mutex),
                By::Sweeper => Some(lock(mutex)),
            };
            let Some(mut guard) = guard.filter(|shard| shard.capacity() > 0) else {
                continue;
            };
            let now = match by {
                By::Step(now) => now,
                By::Sweeper => self.shared.clock.of_sweep(guard.seen),
            };
            visit.cells += guard.len();
            let expired = guard.sweep(now);
            if matches!(by, By::Sweeper) {
                guard.shrink();
            }
            drop(guard);
            visit.expired += expired.len();
            self.shared
                .bound
                .give_back(expired.len(), bytes_of(&expired));
            if visit.cells >= PER_VISIT {
                break;
            }
        }
        Some(visit)
    }

    fn is_empty(&self) -> bool {
        // A locked shard may be getting a new cell.
        self.shards
            .iter()
            .all(|shard| try_lock(shard).is_some_and(|shard| shard.len() == 0))
    }

    fn is_listed(&self) -> &AtomicBool {
        &self.listed
    }
}

/// Returns the bytes that count for these entries.
pub(super) fn bytes_of<C: Cell>(entries: &[Entry<C>]) -> usize {
    entries.iter().map(Entry::bytes).sum()
}

impl<C> Drop for Cells<C> {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            let shard = shard.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.shared
                .bound
                .give_back(shard.len(), (self.bytes)(shard));
        }
    }
}

/// One shard of a namespace: a hash table that is swept before it grows.
#[derive(Debug)]
pub(super) struct Shard<C> {
    table: HashTable<Entry<C>>,
    /// The time of the last step.
    pub(super) seen: i64,
    pub(super) checks: Checks,
}

/// The state of a key. The hash is stored, so that the cost of moving a cell does not depend on the length of its key.
#[derive(Debug)]
pub(super) struct Entry<C> {
    hash: u64,
    key: Key,
    pub(super) cell: C,
}

impl<C: Cell> Entry<C> {
    /// Returns the bytes that the store counts for this entry. The table may have twice as many slots as entries, so
    /// each entry counts twice.
    pub(super) fn bytes(&self) -> usize {
        Self::bytes_of(self.key.as_bytes()) + self.cell.heap_bytes()
    }

    /// Returns the bytes for a key whose cell has allocated nothing.
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
    /// the caller drops after it has released the lock.
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

    /// Returns the bytes that count for its cells.
    pub(super) fn bytes(&self) -> usize {
        self.table.iter().map(Entry::bytes).sum()
    }

    /// Removes and returns the expired cells, so that the caller drops them without the lock.
    pub(super) fn sweep(&mut self, now: i64) -> Vec<Entry<C>> {
        self.table
            .extract_if(|entry| entry.cell.is_idle(now))
            .collect()
    }

    /// Frees memory if the table is far larger than its cells need.
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
    use crate::store::memory::tests::Until;

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
