//! The state of Redis buckets that this process keeps: cached refusals, and prefetched tokens.
//!
//! A key has an [`Entry`] if it was refused or is hot. Other keys have none.

mod entry;
mod gate;
mod hot_keys;
#[cfg(interleavings)]
pub(crate) mod interleavings;
mod last_state;
mod prefetch_task;
mod slots;
#[cfg(test)]
mod tests;
mod thread_local_entry;

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError};

use hashbrown::HashTable;

pub(super) use self::entry::Entry;
pub(super) use self::gate::Asked;
use self::hot_keys::HotKeyCounter;
use self::prefetch_task::PrefetchTask;
use self::thread_local_entry::ThreadLocalEntry;
use super::bucket_state::BucketState;
use super::calls::Clients;
use super::decision::Decision;
use super::state::Ask;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicI64, AtomicUsize, Ordering, fence};
use crate::token_bucket::quota::Quotas;
use crate::{Key, clock};

/// The local state of one bucket and its clones. Cloning is cheap.
#[derive(Clone, Default)]
pub(crate) struct Local {
    /// Whether refusals are cached.
    pub(super) refusals: bool,
    /// How long prefetched tokens are held (µs), and the detection of hot keys. `None` if tokens are not
    /// prefetched.
    pub(super) ahead: Option<(i64, Arc<HotKeyCounter>)>,
    pub(super) table: Arc<Table>,
}

/// The entries, by key and quotas.
pub(super) struct Table {
    /// Identifies the table, because threads keep entries of several tables.
    id: u64,
    hasher: RandomState,
    /// Answers to requests sent until this time (µs) are ignored.
    outdated: AtomicI64,
    count: AtomicUsize,
    shards: Box<[RwLock<Shard>]>,
}

#[derive(Default)]
struct Shard {
    entries: HashTable<Arc<Entry>>,
    /// The number of entries at which the next insertion first removes unused entries.
    sweep_at: usize,
}

const SHARDS: usize = 16;
const SWEEP_AT: usize = 64;

/// The maximum number of entries of a shard. Beyond that, other keys get no entry and ask the store.
const MOST: usize = 4096;

impl Local {
    /// Decides a request locally: refuses it, or admits it with prefetched tokens. Otherwise prepares the call to the
    /// store; `None` if this process keeps no local state.
    ///
    /// If the request is not asked for alone, but with those of other limits, the requests in flight do not count:
    /// they may not be charged, because another limit may refuse them.
    #[inline]
    pub(super) fn answer(
        &self,
        clients: &Arc<Clients>,
        quotas: &Quotas,
        key: Cow<'_, Key>,
        now: impl FnOnce() -> i64,
        ask: Ask,
        is_alone: bool,
    ) -> ControlFlow<Decision, Option<Asked>> {
        if !self.refusals && self.ahead.is_none() {
            return ControlFlow::Continue(None);
        }
        let now = now();
        let found = self.table.with(&key, quotas, |copy| {
            if self.ahead.is_some()
                && let Some(decision) = copy.take(now, ask)
            {
                return ControlFlow::Break(decision);
            }
            let in_flight_of = if self.refusals {
                copy.gate(now, ask, is_alone)?
            } else {
                None
            };
            if is_alone {
                copy.entry.missed(ask.cost);
            }
            ControlFlow::Continue(in_flight_of)
        });
        let in_flight_of = found.unwrap_or(ControlFlow::Continue(None))?;
        // Quotas that never refill are not prefetched, because prefetched tokens are sometimes lost.
        if let Some((hold, hot_keys)) = &self.ahead
            && quotas.limits().iter().all(|limit| limit.num > 0)
            && let hash = self.table.hash(&key)
            && let Some(count) = hot_keys.note(hash, now, *hold, ask.cost)
            && let Some(entry) = self.table.entry(hash, &key, quotas)
        {
            let table = Arc::clone(&self.table);
            PrefetchTask::start(entry, table, clients, *hold, count, now.rem_euclid(*hold));
        }
        let learns = self.refusals.then(|| (self.clone(), key.into_owned()));
        ControlFlow::Continue(Some(Asked {
            learns,
            in_flight_of,
            cost: ask.cost,
            sent: now,
        }))
    }

    /// Removes the cached refusal of a key, because tokens are given back.
    pub(super) fn forget_refusal(&self, key: &Key, quotas: &Quotas) {
        self.table.outdate();
        self.table.with(key, quotas, |copy| copy.entry.open());
    }

    /// Removes the entries of a key, with their prefetched tokens.
    pub(super) fn forget(&self, key: &Key) {
        self.table.outdate();
        self.table.forget(key);
    }
}

impl Table {
    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key.as_bytes())
    }

    /// From now on, answers to requests sent before now are ignored.
    fn outdate(&self) {
        self.outdated.fetch_max(clock::micros(), Ordering::AcqRel);
        // Either the caller sees an entry that was added meanwhile, or its first answer is seen to be outdated.
        fence(Ordering::SeqCst);
    }

    /// Whether the answer to a request sent at this time may be outdated.
    pub(super) fn is_outdated(&self, sent: i64) -> bool {
        sent <= self.outdated.load(Ordering::Acquire)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        &self.shards[(hash >> 48) as usize % SHARDS]
    }

    /// Calls `act` with this thread's copy of the entry of a key, if there is an entry.
    #[inline]
    fn with<R>(
        &self,
        key: &Key,
        quotas: &Quotas,
        act: impl FnOnce(&mut ThreadLocalEntry) -> R,
    ) -> Option<R> {
        if self.is_empty() {
            return None;
        }
        let find = || {
            let hash = self.hash(key);
            let shard = self
                .shard(hash)
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            shard
                .entries
                .find(hash, |entry| entry.is_of(key, quotas))
                .cloned()
        };
        thread_local_entry::with(self.id, key, quotas, find, act)
    }

    /// The entry of a key; created if there is none. `None` if there are too many entries.
    fn entry(&self, hash: u64, key: &Key, quotas: &Quotas) -> Option<Arc<Entry>> {
        let mut shard = self
            .shard(hash)
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = shard.entries.find(hash, |entry| entry.is_of(key, quotas)) {
            return Some(Arc::clone(entry));
        }
        if shard.entries.len() >= shard.sweep_at.max(SWEEP_AT) {
            let (now, before) = (clock::micros(), shard.entries.len());
            shard
                .entries
                .retain(|entry| !entry.ends_if(|entry| entry.is_idle(now)));
            self.count
                .fetch_sub(before - shard.entries.len(), Ordering::Relaxed);
            shard.sweep_at = (2 * shard.entries.len()).min(MOST);
            let room = shard.sweep_at.max(SWEEP_AT);
            shard.entries.shrink_to(room, |entry| entry.hash);
            if shard.entries.len() >= MOST {
                return None;
            }
        }
        let entry = Arc::new(Entry::new(self.id, hash, key, quotas));
        shard
            .entries
            .insert_unique(hash, Arc::clone(&entry), |entry| entry.hash);
        self.count.fetch_add(1, Ordering::Relaxed);
        // See `outdate`.
        fence(Ordering::SeqCst);
        Some(entry)
    }

    fn forget(&self, key: &Key) {
        if self.is_empty() {
            return;
        }
        let hash = self.hash(key);
        let mut shard = self
            .shard(hash)
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        while let Ok(entry) = shard.entries.find_entry(hash, |entry| entry.key == *key) {
            let (entry, _) = entry.remove();
            self.count.fetch_sub(1, Ordering::Relaxed);
            entry.ends_if(|_| true);
            entry.drop_tokens();
            entry.open();
        }
    }
}

impl Default for Table {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        static TABLES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let (id, outdated) = (
            TABLES.fetch_add(1, Ordering::Relaxed),
            AtomicI64::new(i64::MIN),
        );
        Self {
            id,
            hasher: RandomState::new(),
            outdated,
            count: AtomicUsize::new(0),
            shards,
        }
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("refusals", &self.refusals)
            .field("prefetch", &self.ahead.as_ref().map(|(hold, _)| hold))
            .finish_non_exhaustive()
    }
}
