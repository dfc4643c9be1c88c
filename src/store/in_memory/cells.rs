//! The cells of one namespace: the state of each key, and steps on it.

use std::hash::BuildHasher as _;
use std::sync::{Arc, PoisonError, Weak};

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;

use super::Shared;
use super::shard::{Entry, Shard};
use super::sweeper::{By, Sweep, Visit};
use crate::store::operation::Cell;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock, try_lock};
use crate::{Error, Key, clock};

/// The cells of one namespace, in shards.
pub(crate) struct Cells<C> {
    pub(super) shared: Arc<Shared>,
    this: Weak<Self>,
    /// Whether the sweeper lists these cells.
    listed: AtomicBool,
    hasher: DefaultHashBuilder,
    /// [`Shard::bytes`]
    bytes: fn(&Shard<C>) -> usize,
    pub(super) shards: Box<[Mutex<Shard<C>>]>,
}

/// So many that a step or the sweeper, which look through a shard or move its cells, lock few cells at a time: 4000 of a
/// million.
const SHARDS: usize = if cfg!(interleavings) { 1 } else { 256 };

/// A visit of the sweeper ends after so many shards, or so many cells.
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
    /// [`is_overloaded`](Error::is_overloaded) if the step would leave state for a new key in a full store. Nothing
    /// has changed then.
    pub(crate) fn step<R>(
        &self,
        key: &[u8],
        step: impl FnOnce(&mut C, i64) -> R,
    ) -> Result<R, Error> {
        self.step_with(key, 0, step)
    }

    /// Like [`step`](Self::step), for a step that stores so many bytes, besides what the cell is made of.
    ///
    /// # Errors
    ///
    /// [`is_overloaded`](Error::is_overloaded), as for `step`, and if the bytes are more than a full store has of the key.
    pub(crate) fn step_with<R>(
        &self,
        key: &[u8],
        payload: usize,
        step: impl FnOnce(&mut C, i64) -> R,
    ) -> Result<R, Error> {
        let stepped = self.step_among(key, payload, |cell, now| {
            let reply = step(cell, now);
            (reply, cell.pushes())
        });
        let (reply, pushes) = stepped.inspect_err(|_| self.tell_refused())?;
        for push in pushes {
            self.shared.notifier.deliver(push);
        }
        Ok(reply)
    }

    /// Reports a refused step to the telemetry. Must be called without a lock.
    pub(crate) fn tell_refused(&self) {
        self.shared.bound.refused();
    }

    /// Like [`step_with`](Self::step_with), within a step on a locked cell of another namespace. It delivers no pushes and
    /// does not report a refusal: call [`tell_refused`](Self::tell_refused) afterwards.
    pub(crate) fn step_among<R>(
        &self,
        key: &[u8],
        payload: usize,
        step: impl FnOnce(&mut C, i64) -> R,
    ) -> Result<R, Error> {
        let (hash, shard) = self.place(key);
        let mutex = &self.shards[shard];
        let bound = &self.shared.bound;
        let mut guard = lock(mutex);
        let mut now = self.now(&mut guard);
        let bytes = Entry::<C>::bytes_of(key) + payload;
        if bound.is_full(bytes) && guard.find(hash, key).is_none() {
            drop(guard);
            bound.search(&self.shared.sweeper, now, 1, bytes);
            guard = lock(mutex);
            now = self.now(&mut guard);
        }
        let shard = &mut *guard;
        if let Some(mut entry) = shard.find(hash, key) {
            let cell = &mut entry.get_mut().cell;
            let before = cell.heap_bytes();
            bound
                .check_growth(payload.saturating_sub(before))
                .inspect_err(|_| self.shared.sweeper.press())?;
            if cell.is_idle(now) {
                cell.clear();
            }
            let reply = step(cell, now);
            bound.changed(before, cell.heap_bytes());
            if bound.is_tight() && cell.is_idle(now) {
                let bytes = entry.get().bytes();
                entry.remove();
                bound.give_back(1, bytes);
            }
            return Ok(reply);
        }
        let mut cell = C::default();
        let reply = step(&mut cell, now);
        if cell.is_idle(now) {
            return Ok(reply);
        }
        let bytes = Entry::<C>::bytes_of(key) + cell.heap_bytes();
        bound
            .take(bytes)
            .inspect_err(|_| self.shared.sweeper.press())?;
        let expired = shard.insert(hash, key, cell, now);
        drop(guard);
        bound.give_back(expired.len(), bytes_of(&expired));
        self.is_not_empty();
        Ok(reply)
    }

    /// The hash of a key, and its shard. One hash is enough: within a shard, other bits of it are used.
    #[inline]
    pub(super) fn place(&self, key: &[u8]) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        (hash, (hash >> 40) as usize % SHARDS)
    }

    /// Lets the sweeper know that there are cells.
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

    /// The time of a step by the [clock of leases](clock), without another reading.
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
        // The thread that has locked a shard may be inserting.
        self.shards
            .iter()
            .all(|shard| try_lock(shard).is_some_and(|shard| shard.len() == 0))
    }

    fn is_listed(&self) -> &AtomicBool {
        &self.listed
    }
}

/// The bytes that are counted for entries.
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
