//! What this process knows of buckets in Redis: refusals that need no asking, and tokens that were charged ahead.
//!
//! An [`Entry`] is made for a key that was refused, or that is hot; other keys have none.

mod entry;
mod gate;
mod heat;
mod keeper;
mod near;
mod slots;
#[cfg(test)]
mod tests;
mod told;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use hashbrown::HashTable;

pub(super) use self::entry::Entry;
pub(super) use self::gate::{Asked, Gate, Pass};
use self::heat::Heat;
use self::keeper::Keeper;
use self::near::Near;
use super::TokenBucket;
use super::decision::Decision;
use super::state::Ask;
use crate::Key;
use crate::primitive::clock;
use crate::primitive::quota::Quotas;

/// What one bucket and its clones know. A cheap clone.
#[derive(Clone, Default)]
pub(crate) struct Local {
    /// Whether refusals are remembered.
    refusals: bool,
    /// How long tokens are held that are charged ahead, µs, and where it is seen which keys are hot.
    ahead: Option<(i64, Arc<Heat>)>,
    table: Arc<Table>,
}

/// The entries, by key and quotas.
struct Table {
    /// Tells tables apart, of which threads know entries.
    id: u64,
    hasher: RandomState,
    /// What was asked until then, µs, is not learned from.
    outdated: AtomicI64,
    count: AtomicUsize,
    shards: Box<[RwLock<Shard>]>,
}

#[derive(Default)]
struct Shard {
    entries: HashTable<Arc<Entry>>,
    /// How many entries it takes before those are looked for that are of no use any more.
    sweep_at: usize,
}

const SHARDS: usize = 16;
const SWEEP_AT: usize = 64;

/// How many entries a shard has at most. Beyond, nothing is learned about other keys: they ask the store.
const MOST: usize = 4096;

/// What is to be done about a request.
pub(super) enum Answer {
    /// Nobody need be asked.
    Known(Decision),
    /// The store is to be asked, and this to be told what it says.
    Ask(Asked),
}

impl Local {
    pub(super) fn with_refusals(mut self, refusals: bool) -> Self {
        self.refusals = refusals;
        self
    }

    pub(super) fn with_prefetch(mut self, hold: i64) -> Self {
        self.ahead = Some((hold, Arc::default()));
        self
    }

    pub(super) fn without_prefetch(self) -> Self {
        Self { ahead: None, ..self }
    }

    /// Whether nothing is known, ever.
    pub(super) fn is_off(&self) -> bool {
        !self.refusals && self.ahead.is_none()
    }

    /// Whether nothing is known now.
    pub(super) fn knows_nothing(&self) -> bool {
        self.is_off() || self.table.is_empty()
    }

    fn take(&self, near: &mut Near, now: i64, ask: Ask) -> Option<Decision> {
        if self.ahead.is_some() { near.take(now, ask) } else { None }
    }

    fn refusal(&self, near: &Near, now: i64, ask: Ask) -> Option<Decision> {
        if self.refusals { near.refusal(now, ask) } else { None }
    }

    /// The decision on a request, where nobody need be asked.
    #[inline]
    pub(super) fn known(&self, quotas: &Quotas, key: &Key, ask: Ask) -> Option<Decision> {
        if self.knows_nothing() {
            return None;
        }
        let now = clock::micros();
        self.table
            .with(key, quotas, |near| self.take(near, now, ask).or_else(|| self.refusal(near, now, ask)))?
    }

    /// What is known of a request.
    pub(super) fn answer(&self, bucket: &TokenBucket, quotas: &Quotas, key: &Key, ask: Ask) -> Answer {
        let now = clock::micros();
        let found = self.table.with(key, quotas, |near| {
            if let Some(decision) = self.take(near, now, ask) {
                return Gate::Known(decision);
            }
            let gate = if self.refusals { near.gate(now, ask) } else { Gate::Open };
            if matches!(gate, Gate::Open | Gate::Pass(_)) {
                near.entry.missed(ask.cost);
            }
            gate
        });
        let pass = match found {
            Some(Gate::Known(decision)) => return Answer::Known(decision),
            Some(Gate::Pass(pass)) => Some(pass),
            Some(Gate::Open) | None => None,
        };
        // What never comes back is not charged ahead: some of that is lost at times.
        if let Some((hold, heat)) = &self.ahead
            && quotas.limits().iter().all(|limit| limit.num > 0)
            && let hash = self.table.hash(key)
            && let Some(count) = heat.note(hash, now, *hold, ask.cost)
            && let Some(entry) = self.table.entry(hash, key, quotas)
        {
            let table = Arc::clone(&self.table);
            Keeper::start(entry, table, &bucket.clients, *hold, count, now.rem_euclid(*hold));
        }
        let learns = self.refusals.then(|| (self.clone(), key.clone()));
        Answer::Ask(Asked::new(learns, pass, now))
    }

    /// As [`answer`](Self::answer) of one of several limits: a refusal, or a place among those who may ask, where there is one.
    pub(super) fn gate(
        &self,
        quotas: &Quotas,
        key: &Key,
        now: i64,
        ask: Ask,
    ) -> Result<Option<Pass>, Decision> {
        if !self.refusals || self.table.is_empty() {
            return Ok(None);
        }
        let gate = |near: &mut Near| near.told_refusal(now, ask).map_or_else(|| Ok(near.gate(now, ask)), Err);
        match self.table.with(key, quotas, gate) {
            Some(Err(refusal)) => Err(refusal),
            Some(Ok(Gate::Pass(pass))) => Ok(Some(pass)),
            // Those who ask may not be charged, since another limit refuses them: it asks as well.
            Some(Ok(Gate::Known(_) | Gate::Open)) | None => Ok(None),
        }
    }

    /// A refusal by what the store told, whoever asks now.
    pub(super) fn told_refusal(&self, quotas: &Quotas, key: &Key, ask: Ask) -> Option<Decision> {
        if !self.refusals || self.table.is_empty() {
            return None;
        }
        let now = clock::micros();
        self.table.with(key, quotas, |near| near.told_refusal(now, ask))?
    }

    /// What has become of a request that asked at `sent`, after [`gate`](Self::gate).
    pub(super) fn answered(&self, key: &Key, pass: Option<Pass>, sent: i64, decision: &Decision) {
        if self.refusals && (pass.is_some() || !decision.admitted) {
            Asked::new(Some((self.clone(), key.clone())), pass, sent).answered(decision);
        }
    }

    /// Forgets what is known of refusals: something is given back.
    pub(super) fn forget_refusal(&self, key: &Key, quotas: &Quotas) {
        self.table.outdate();
        self.table.with(key, quotas, |near| near.entry.open());
    }

    /// Forgets all of a key, and drops what was charged ahead.
    pub(super) fn forget(&self, key: &Key) {
        self.table.outdate();
        self.table.forget(key);
    }
}

impl Table {
    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key.as_bytes())
    }

    /// What was asked before now is of no use any more.
    fn outdate(&self) {
        self.outdated.fetch_max(clock::micros(), Ordering::AcqRel);
    }

    /// Whether what was asked at this time may be out of date.
    pub(super) fn is_outdated(&self, sent: i64) -> bool {
        sent <= self.outdated.load(Ordering::Acquire)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        &self.shards[(hash >> 48) as usize % SHARDS]
    }

    /// Does something with the entry of a key, if there is one, by what this thread has of it.
    #[inline]
    fn with<R>(&self, key: &Key, quotas: &Quotas, act: impl FnOnce(&mut Near) -> R) -> Option<R> {
        if self.is_empty() {
            return None;
        }
        let find = || {
            let hash = self.hash(key);
            let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
            shard.entries.find(hash, |entry| entry.is_of(key, quotas)).cloned()
        };
        near::with(self.id, key, quotas, find, act)
    }

    /// The entry of a key, made where there is none. `None`: there are too many.
    fn entry(&self, hash: u64, key: &Key, quotas: &Quotas) -> Option<Arc<Entry>> {
        let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = shard.entries.find(hash, |entry| entry.is_of(key, quotas)) {
            return Some(Arc::clone(entry));
        }
        if shard.entries.len() >= shard.sweep_at.max(SWEEP_AT) {
            let (now, before) = (clock::micros(), shard.entries.len());
            shard.entries.retain(|entry| !entry.ends_if(|entry| entry.is_idle(now)));
            self.count.fetch_sub(before - shard.entries.len(), Ordering::Relaxed);
            shard.sweep_at = (2 * shard.entries.len()).min(MOST);
            let room = shard.sweep_at.max(SWEEP_AT);
            shard.entries.shrink_to(room, |entry| entry.hash);
            if shard.entries.len() >= MOST {
                return None;
            }
        }
        let entry = Arc::new(Entry::new(self.id, hash, key, quotas));
        shard.entries.insert_unique(hash, Arc::clone(&entry), |entry| entry.hash);
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(entry)
    }

    fn forget(&self, key: &Key) {
        if self.is_empty() {
            return;
        }
        let hash = self.hash(key);
        let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
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
        static TABLES: AtomicU64 = AtomicU64::new(0);
        let (id, outdated) = (TABLES.fetch_add(1, Ordering::Relaxed), AtomicI64::new(i64::MIN));
        Self { id, hasher: RandomState::new(), outdated, count: AtomicUsize::new(0), shards }
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
