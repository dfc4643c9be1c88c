//! One step on the cells of several keys of a namespace.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::store::memory::cells::{Cells, Entry, Shard, bytes_of};
use crate::store::notifier::Push;
use crate::store::operation::Cell;
use crate::sync::{MutexGuard, lock};

/// The store has no room for a step at the time `now`, which needs it for `cells` new cells with `bytes` in total.
struct NoRoom {
    error: Error,
    now: i64,
    cells: usize,
    bytes: usize,
}

/// The location of the cell of a key.
struct Position<'a> {
    key: &'a [u8],
    hash: u64,
    shard: usize,
}

/// The shards of a step by their numbers. `None` until a shard is locked.
type Shards<'a, C> = BTreeMap<usize, Option<MutexGuard<'a, Shard<C>>>>;

impl<C: Cell> Cells<C> {
    /// Like [`step`](Self::step), on the cells of several distinct keys. All their shards are locked during the step.
    ///
    /// # Errors
    ///
    /// [`is_overloaded`](Error::is_overloaded), as for one cell. In this case nothing has changed.
    pub(crate) fn step_all<R>(
        &self,
        keys: &[impl AsRef<[u8]>],
        mut step: impl FnMut(&mut [C], i64) -> R,
    ) -> Result<R, Error> {
        let mut stepped = self.try_step_all(keys, &mut step);
        if let Err(NoRoom {
            now, cells, bytes, ..
        }) = stepped
        {
            self.shared
                .bound
                .search(&self.shared.sweeper, now, cells, bytes);
            stepped = self.try_step_all(keys, &mut step);
        }
        let (reply, pushes) = stepped.map_err(|no_room| {
            self.tell_refused();
            no_room.error
        })?;
        pushes
            .into_iter()
            .for_each(|push| self.shared.notifier.deliver(push));
        Ok(reply)
    }

    fn try_step_all<R>(
        &self,
        keys: &[impl AsRef<[u8]>],
        step: &mut impl FnMut(&mut [C], i64) -> R,
    ) -> Result<(R, Vec<Push>), NoRoom> {
        let position = |key| {
            let (hash, shard) = self.locate(key);
            Position { key, hash, shard }
        };
        let positions: Vec<_> = keys.iter().map(|key| position(key.as_ref())).collect();
        let (mut shards, now) = self.lock_all(&positions);
        let mut cells = Vec::with_capacity(keys.len());
        let mut is_new = Vec::with_capacity(keys.len());
        for position in &positions {
            let cell = self.copy_of(position, &mut shards, now);
            is_new.push(cell.is_none());
            cells.push(cell.unwrap_or_default());
        }
        let reply = step(&mut cells, now);
        let pushes = cells.iter_mut().flat_map(Cell::pushes).collect();
        let new = positions.iter().zip(cells.iter().zip(&is_new));
        let new = new.filter(|(_, (cell, is_new))| **is_new && !cell.is_idle(now));
        let new: Vec<_> = new
            .map(|(position, (cell, _))| Entry::<C>::bytes_of(position.key) + cell.heap_bytes())
            .collect();
        self.take_room(&new, now)?;
        let expired = self.put_all(&positions, &mut shards, cells, now);
        drop(shards);
        self.shared
            .bound
            .give_back(expired.len(), bytes_of(&expired));
        if !new.is_empty() {
            self.is_not_empty();
        }
        Ok((reply, pushes))
    }

    /// Locks the shards of these keys, each once, in the same order for all callers, which prevents deadlocks. Returns
    /// them with the time of the step.
    fn lock_all(&self, positions: &[Position<'_>]) -> (Shards<'_, C>, i64) {
        let mut shards: Shards<'_, C> = positions
            .iter()
            .map(|position| (position.shard, None))
            .collect();
        let mut now = i64::MIN;
        for (shard, guard) in &mut shards {
            let guard = guard.insert(lock(&self.shards[*shard]));
            now = now.max(self.now(guard));
        }
        (shards, now)
    }

    /// Returns a copy of a cell, if the key has state. Removes expired state.
    fn copy_of(&self, position: &Position<'_>, shards: &mut Shards<'_, C>, now: i64) -> Option<C> {
        let shard = shards.get_mut(&position.shard)?.as_mut()?;
        let entry = shard.find(position.hash, position.key)?;
        if entry.get().cell.is_idle(now) {
            // Otherwise the next insert would sweep it.
            self.shared.bound.give_back(1, entry.get().bytes());
            entry.remove();
            return None;
        }
        Some(entry.get().cell.clone())
    }

    /// Counts all new cells, by their bytes, or none of them.
    fn take_room(&self, new: &[usize], now: i64) -> Result<(), NoRoom> {
        let bound = &self.shared.bound;
        for (taken, bytes) in new.iter().enumerate() {
            if let Err(error) = bound.take(*bytes) {
                bound.give_back(taken, new[..taken].iter().sum());
                return Err(NoRoom {
                    error,
                    now,
                    cells: new.len(),
                    bytes: new.iter().sum(),
                });
            }
        }
        Ok(())
    }

    /// Puts the cells back after the step. Returns the expired cells, which the caller drops without the locks.
    fn put_all(
        &self,
        positions: &[Position<'_>],
        shards: &mut Shards<'_, C>,
        cells: Vec<C>,
        now: i64,
    ) -> Vec<Entry<C>> {
        let bound = &self.shared.bound;
        let mut expired = Vec::new();
        for (position, cell) in positions.iter().zip(cells) {
            let Some(Some(shard)) = shards.get_mut(&position.shard) else {
                continue;
            };
            let is_idle = cell.is_idle(now);
            match shard.find(position.hash, position.key) {
                Some(entry) if is_idle && bound.is_tight() => {
                    bound.give_back(1, entry.get().bytes());
                    entry.remove();
                }
                Some(mut entry) => {
                    bound.changed(entry.get().cell.heap_bytes(), cell.heap_bytes());
                    entry.get_mut().cell = cell;
                }
                None if !is_idle => {
                    expired.extend(shard.insert(position.hash, position.key, cell, now))
                }
                None => {}
            }
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;
    use crate::store::memory::tests::manual;

    /// A number, and the time until which it is kept.
    #[derive(Clone, Debug, Default)]
    struct Kept(u64, i64);

    impl Cell for Kept {
        fn is_idle(&self, now: i64) -> bool {
            self.1 <= now
        }
    }

    fn add(cells: &Cells<Kept>, keys: &[String], until: i64) -> Result<Vec<u64>, Error> {
        cells.step_all(keys, |cells, _| {
            cells
                .iter_mut()
                .for_each(|cell| *cell = Kept(cell.0 + 1, until));
            cells.iter().map(|cell| cell.0).collect()
        })
    }

    fn names(keys: impl IntoIterator<Item = u64>) -> Vec<String> {
        keys.into_iter().map(|key| key.to_string()).collect()
    }

    #[test]
    fn a_full_store_takes_all_new_keys_or_none() {
        let (store, time) = manual(Some(3));
        let cells = store.cells("a");
        assert_eq!(add(&cells, &names([1, 2]), 10).unwrap(), [1, 1]);
        assert!(
            add(&cells, &names([2, 3, 4]), 10)
                .unwrap_err()
                .is_overloaded()
        );
        assert_eq!(add(&cells, &names([2, 3, 1]), 10).unwrap(), [2, 1, 2]);
        assert!(add(&cells, &names([1, 4]), 10).is_err());
        // A key without state is removed at once.
        assert_eq!(add(&cells, &names([3]), 0).unwrap(), [2]);
        assert_eq!(add(&cells, &names([1, 4]), 10).unwrap(), [3, 1]);
        time.store(2010, Ordering::Relaxed);
        assert_eq!(
            add(&cells, &names([5, 6, 4]), 3000).unwrap(),
            [1, 1, 1],
            "all had expired"
        );
        assert_eq!(cells.shared.bound.cells(), 3);
    }

    /// Threads that use the keys in different orders wait for each other, without a deadlock. No step is lost.
    #[test]
    fn steps_on_the_same_keys_run_one_after_the_other() {
        const STEPS: u64 = 2000;
        let (store, _time) = manual(None);
        let (cells, wanted) = (store.cells("a"), AtomicU64::new(0));
        thread::scope(|scope| {
            for thread in 0..4 {
                let (cells, wanted) = (&cells, &wanted);
                scope.spawn(move || {
                    // With 1000 keys, some of them are in one shard.
                    for step in 0..STEPS {
                        let first = (step * 7 + thread * 3) % 1000;
                        let (second, third) = ((first + 500) % 1000, (first * 3 + 1) % 1000);
                        let mut keys = vec![first, second];
                        keys.extend((third != first && third != second).then_some(third));
                        wanted.fetch_add(keys.len() as u64, Ordering::Relaxed);
                        add(cells, &names(keys), i64::MAX).unwrap();
                        cells
                            .step(b"alone", |cell, _| *cell = Kept(cell.0 + 1, i64::MAX))
                            .unwrap();
                    }
                });
            }
        });
        assert_eq!(add(&cells, &names([]), 0).unwrap(), [0; 0]);
        let alone = cells.step(b"alone", |cell, _| cell.0).unwrap();
        let all = cells.step_all(&names(0..1000), |cells, _| {
            cells.iter().map(|cell| cell.0).sum::<u64>()
        });
        assert_eq!((alone, all.unwrap()), (4 * STEPS, wanted.into_inner()));
    }
}
