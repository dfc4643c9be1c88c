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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use hashbrown::HashTable;

pub(super) use self::entry::Entry;
pub(super) use self::gate::{Asked, Gate};
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
    hasher: RandomState,
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

    /// Whether nothing is known, ever.
    pub(super) fn is_off(&self) -> bool {
        !self.refusals && self.ahead.is_none()
    }

    /// The decision on a request, where nobody need be asked.
    #[inline]
    pub(super) fn known(&self, quotas: &Quotas, key: &Key, ask: Ask) -> Option<Decision> {
        if self.table.is_empty() {
            return None;
        }
        let now = clock::micros();
        self.table.with(key, quotas, |near| near.take(now, ask).or_else(|| near.refusal(now, ask)))?
    }

    /// What is known of a request.
    pub(super) fn answer(&self, bucket: &TokenBucket, quotas: &Quotas, key: &Key, ask: Ask) -> Answer {
        let now = clock::micros();
        let found = self.table.with(key, quotas, |near| {
            if let Some(decision) = near.take(now, ask) {
                return Gate::Known(decision);
            }
            let gate = near.gate(now, ask);
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
        let hash = self.table.hash(key, quotas);
        if let Some((hold, heat)) = &self.ahead
            && let Some(count) = heat.note(hash, now, *hold, ask.cost)
        {
            let entry = self.table.entry(hash, key, quotas);
            Keeper::start(entry, &bucket.clients, *hold, count, now.rem_euclid(*hold));
        }
        let learns = self.refusals.then(|| (self.clone(), hash, key.clone()));
        Answer::Ask(Asked::new(learns, pass, now))
    }

    /// Forgets what is known of refusals: something is given back.
    pub(super) fn forget_refusal(&self, key: &Key, quotas: &Quotas) {
        self.table.with(key, quotas, |near| near.entry.open());
    }

    /// Forgets all of a key, and drops what was charged ahead.
    pub(super) fn forget(&self, key: &Key) {
        self.table.retain(|entry| {
            let other = entry.key != *key;
            if !other {
                entry.drop_tokens();
                entry.open();
            }
            other
        });
    }
}

impl Table {
    fn hash(&self, key: &Key, quotas: &Quotas) -> u64 {
        self.hasher.hash_one(key.as_bytes()) ^ (quotas.id() as u64).rotate_left(32)
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
            let hash = self.hash(key, quotas);
            let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
            shard.entries.find(hash, |entry| entry.is_of(key, quotas)).cloned()
        };
        near::with(key, quotas, find, act)
    }

    /// The entry of a key, made where there is none.
    fn entry(&self, hash: u64, key: &Key, quotas: &Quotas) -> Arc<Entry> {
        let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = shard.entries.find(hash, |entry| entry.is_of(key, quotas)) {
            return Arc::clone(entry);
        }
        if shard.entries.len() >= shard.sweep_at.max(SWEEP_AT) {
            let (now, before) = (clock::micros(), shard.entries.len());
            shard.entries.retain(|entry| !entry.ends_if(|entry| entry.is_idle(now)));
            self.count.fetch_sub(before - shard.entries.len(), Ordering::Relaxed);
            shard.sweep_at = 2 * shard.entries.len();
            let room = shard.sweep_at.max(SWEEP_AT);
            shard.entries.shrink_to(room, |entry| entry.hash);
        }
        let entry = Arc::new(Entry::new(hash, key, quotas));
        shard.entries.insert_unique(hash, Arc::clone(&entry), |entry| entry.hash);
        self.count.fetch_add(1, Ordering::Relaxed);
        entry
    }

    fn retain(&self, mut keep: impl FnMut(&Entry) -> bool) {
        if self.is_empty() {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            let before = shard.entries.len();
            shard.entries.retain(|entry| !entry.ends_if(|entry| !keep(entry)));
            self.count.fetch_sub(before - shard.entries.len(), Ordering::Relaxed);
        }
    }
}

impl Default for Table {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { hasher: RandomState::new(), count: AtomicUsize::new(0), shards }
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
