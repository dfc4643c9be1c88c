//! The state of Redis buckets that this process keeps: cached refusals, and prefetched tokens. A key has an [`Entry`]
//! if it was refused or is hot. Other keys have none.
//!
//! Cached refusals: the latest state from the store bounds the number of tokens that the bucket can have now. The
//! process sends as many requests to the store as there can be tokens, and refuses the others without a call. The store
//! would refuse them too, unless other processes gave tokens back, reset the bucket, or charged it under raised quotas.
//! The cache learns such changes after at most one second.
//!
//! The state in a reply may include requests whose own replies are not read yet. Until then these requests count twice,
//! so a request may be refused for the last tokens.

pub(crate) mod entry;
mod hot_keys;
#[cfg(interleavings)]
pub(crate) mod interleavings;
mod prefetch_task;
#[cfg(test)]
mod tests;
mod thread;

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError};

use hashbrown::HashTable;

use crate::bucket::Ask;
use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::quotas::Quotas;
use crate::clock;
use crate::key::Key;
use crate::sync::atomic::{AtomicI64, AtomicUsize, Ordering, fence};
use crate::sync::{RwLock, lock};
use crate::token_bucket::calls::Clients;
use crate::token_bucket::local::entry::Entry;
use crate::token_bucket::local::hot_keys::HotKeyCounter;
use crate::token_bucket::local::prefetch_task::PrefetchTask;
use crate::token_bucket::local::thread::ThreadLocalEntry;

/// The local state of one bucket and its clones. Cloning is cheap.
#[derive(Clone, Default)]
pub(crate) struct Local {
    /// Whether refusals are cached.
    pub(crate) refusals: bool,
    /// How long prefetched tokens are held (µs), and the detection of hot keys. `None` if tokens are not prefetched.
    pub(crate) ahead: Option<(i64, Arc<HotKeyCounter>)>,
    pub(crate) table: Arc<Table>,
}

/// The entries, by key and quotas.
pub(crate) struct Table {
    /// Identifies the table, because threads keep entries of several tables.
    id: u64,
    hasher: RandomState,
    /// Replies to requests sent until this time (µs) are ignored.
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

/// The maximum number of entries of a shard. Beyond it, other keys get no entry, and all their requests go to the
/// store.
const MOST: usize = 4096;

impl Local {
    /// Decides a request locally: refuses it, or admits it with prefetched tokens. Otherwise prepares the call to the
    /// store; `None` if this process keeps no local state.
    ///
    /// If the request is one of several for different limits, the requests in flight do not count: they may not be
    /// charged, because another limit may refuse them.
    #[inline]
    pub(crate) fn answer(
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
    pub(crate) fn forget_refusal(&self, key: &Key, quotas: &Quotas) {
        self.table.outdate();
        self.table.with(key, quotas, |copy| copy.entry.open());
    }

    /// Removes the entries of a key, with their prefetched tokens.
    pub(crate) fn forget(&self, key: &Key) {
        self.table.outdate();
        self.table.forget(key);
    }
}

impl Table {
    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key.as_bytes())
    }

    /// From now on, replies to requests sent before now are ignored.
    fn outdate(&self) {
        self.outdated.fetch_max(clock::micros(), Ordering::AcqRel);
        // Either the caller sees an entry that another thread adds, or that thread sees that its first reply is
        // outdated.
        fence(Ordering::SeqCst);
    }

    /// Whether the reply to a request sent at this time may be outdated.
    pub(crate) fn is_outdated(&self, sent: i64) -> bool {
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
        thread::with(self.id, key, quotas, find, act)
    }

    /// The entry of a key. Creates it if there is none. `None` if there are too many entries.
    fn entry(&self, hash: u64, key: &Key, quotas: &Quotas) -> Option<Arc<Entry>> {
        let mut shard = self
            .shard(hash)
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = shard.entries.find(hash, |entry| entry.is_of(key, quotas)) {
            return Some(Arc::clone(entry));
        }
        if shard.entries.len() >= shard.sweep_at.max(SWEEP_AT) {
            let now = clock::micros();
            let before = shard.entries.len();
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
        let id = TABLES.fetch_add(1, Ordering::Relaxed);
        let outdated = AtomicI64::new(i64::MIN);
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

/// How long a stored state is used, µs.
const LONGEST: i64 = 1_000_000;

/// A request that is sent to the store.
pub(crate) struct Asked {
    /// Stores the reply.
    pub(crate) learns: Option<(Local, Key)>,
    /// The entry that counts this request as in flight, until this is dropped.
    pub(crate) in_flight_of: Option<Arc<Entry>>,
    pub(crate) cost: i64,
    pub(crate) sent: i64,
}

impl ThreadLocalEntry {
    /// The refusal of a request, or the entry that counts it as in flight. If there is no usable state, no entry counts
    /// it. See [`Local::answer`] for `is_alone`.
    pub(crate) fn gate(
        &self,
        now: i64,
        ask: Ask,
        is_alone: bool,
    ) -> ControlFlow<Decision, Option<Arc<Entry>>> {
        let entry = &self.entry;
        if now >= entry.known_until.load(Ordering::Acquire) {
            return ControlFlow::Continue(None);
        }
        let mut in_flight = entry.in_flight.load(Ordering::Relaxed);
        loop {
            if let Some(refusal) = self.refused(now, ask, in_flight) {
                let current = entry.in_flight.load(Ordering::Relaxed);
                if current < in_flight {
                    // Some of them got replies in the meantime, and may already count in the state.
                    in_flight = current;
                    continue;
                }
                let refusal = if is_alone {
                    Some(refusal)
                } else {
                    self.refused(now, ask, 0)
                };
                return refusal.map_or(ControlFlow::Continue(None), ControlFlow::Break);
            }
            let more = in_flight + ask.cost;
            match entry.in_flight.compare_exchange_weak(
                in_flight,
                more,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return ControlFlow::Continue(Some(Arc::clone(entry))),
                Err(current) => in_flight = current,
            }
        }
    }

    /// Decides a request by the stored state minus the requests in flight. Returns the refusal, if any.
    #[inline]
    fn refused(&self, now: i64, ask: Ask, in_flight: i64) -> Option<Decision> {
        let quotas = &self.quotas;
        let last_state = &self.entry.last_state;
        let time = last_state.time(now);
        let mut bucket = last_state.bucket(quotas);
        if in_flight > 0 {
            bucket.charge(quotas, time, in_flight);
        }
        (!bucket.take(quotas, time, ask)).then(|| self.decision(ask, false, now, bucket))
    }
}

impl Entry {
    /// Stores the state in the reply to a request sent at `sent`, unless the reply is outdated, or a later one is
    /// stored. The state bounds the requests to the store until `known_until`.
    pub(crate) fn learn(
        &self,
        table: &Table,
        sent: i64,
        state: &BucketState,
        known_until: Option<i64>,
    ) {
        let _learning = lock(&self.learning);
        if !table.is_outdated(sent)
            && self.last_state.learn(sent, state)
            && let Some(until) = known_until
        {
            self.known_until.store(until, Ordering::Release);
        }
    }

    /// Removes the cached refusal. The caller marks the [table](Table::outdate) as outdated first.
    pub(crate) fn open(&self) {
        let _learning = lock(&self.learning);
        self.known_until.store(0, Ordering::Release);
    }
}

impl Asked {
    /// Stores the reply of the store: whether it admitted the request, and the state after that.
    pub(crate) fn answered(mut self, admitted: bool, state: &BucketState) {
        // Must happen before the tokens of the request count in the state.
        let in_flight_of = self.lands();
        let Some((local, key)) = &self.learns else {
            return;
        };
        if local.table.is_outdated(self.sent) {
            return;
        }
        let learn =
            |entry: &Entry| entry.learn(&local.table, self.sent, state, Some(self.sent + LONGEST));
        match &in_flight_of {
            Some(entry) => learn(entry),
            None if !admitted => {
                // If there is no room for an entry, the reply is not stored.
                let hash = local.table.hash(key);
                local
                    .table
                    .entry(hash, key, &state.quotas)
                    .iter()
                    .for_each(|entry| learn(entry));
            }
            None => {}
        }
    }

    /// Ends the request in flight. Returns the entry that counted it.
    fn lands(&mut self) -> Option<Arc<Entry>> {
        let entry = self.in_flight_of.take()?;
        entry.in_flight.fetch_sub(self.cost, Ordering::Relaxed);
        Some(entry)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.lands();
    }
}
