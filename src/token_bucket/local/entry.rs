//! The local state of one key under one set of quotas.

use tokio::sync::Notify;

use super::last_state::LastState;
use super::slots::{Slots, Taken};
use crate::Key;
use crate::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use crate::sync::{Mutex, Padded};
use crate::token_bucket::quota::Quotas;

pub(crate) struct Entry {
    /// The id of the table that contains this entry.
    pub(super) table: u64,
    pub(super) hash: u64,
    pub(super) key: Key,
    pub(super) quotas: Quotas,
    pub(super) last_state: LastState,
    /// Locked by whoever stores a state, or removes it.
    pub(super) learning: Mutex<()>,
    /// Whether the entry was removed from the table.
    is_gone: AtomicBool,
    /// Until when (µs) the stored state bounds the requests to the store; 0: it does not.
    pub(super) known_until: AtomicI64,
    /// The tokens of requests that the store has not answered yet.
    pub(super) in_flight: AtomicI64,
    /// The prefetched tokens.
    pub(super) slots: Padded<Slots>,
    /// The size of the last prefetch.
    pub(super) batch: AtomicI64,
    /// Whether a [`PrefetchTask`](super::PrefetchTask) runs for this entry.
    pub(super) has_prefetch_task: AtomicBool,
    /// Until when (µs) no task starts, after a prefetch that got no tokens.
    pub(super) no_prefetch_until: AtomicI64,
    /// Whether more tokens are requested from the task.
    pub(super) wants: AtomicBool,
    pub(super) more: Notify,
    /// The tokens requested from the store since the last prefetch.
    pub(super) missed: AtomicI64,
}

impl Entry {
    pub(super) fn new(table: u64, hash: u64, key: &Key, quotas: &Quotas) -> Self {
        Self {
            table,
            hash,
            key: key.clone(),
            quotas: quotas.clone(),
            last_state: LastState::new(quotas),
            learning: Mutex::default(),
            is_gone: AtomicBool::new(false),
            known_until: AtomicI64::new(0),
            in_flight: AtomicI64::new(0),
            slots: Padded::default(),
            batch: AtomicI64::new(0),
            has_prefetch_task: AtomicBool::new(false),
            no_prefetch_until: AtomicI64::new(0),
            wants: AtomicBool::new(false),
            more: Notify::new(),
            missed: AtomicI64::new(0),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Marks the entry as removed if `ends` says so. Returns whether it does.
    pub(super) fn ends_if(&self, ends: impl FnOnce(&Self) -> bool) -> bool {
        let ends = ends(self);
        if ends {
            self.is_gone.store(true, Ordering::Release);
        }
        ends
    }

    pub(super) fn is_of(&self, key: &Key, quotas: &Quotas) -> bool {
        self.quotas.id() == quotas.id() && self.key == *key
    }

    /// Whether the entry is unused.
    pub(super) fn is_idle(&self, now: i64) -> bool {
        self.known_until.load(Ordering::Relaxed) <= now
            && self.in_flight.load(Ordering::Relaxed) == 0
            && !self.has_prefetch_task.load(Ordering::Relaxed)
    }

    /// Takes prefetched tokens; see [`Slots::take`].
    pub(super) fn take(&self, now: i64, cost: i64, share: u32) -> Option<Taken> {
        let taken = self.slots.0.take(now, cost, share)?;
        if taken.left * 4 <= self.batch.load(Ordering::Relaxed)
            && self.slots.0.left(1 - taken.slot) == 0
        {
            self.want_more();
        }
        Some(taken)
    }

    fn want_more(&self) {
        if !self.wants.load(Ordering::Relaxed) && !self.wants.swap(true, Ordering::Relaxed) {
            self.more.notify_one();
        }
    }

    /// Counts tokens that a request asks the store for.
    pub(super) fn missed(&self, tokens: i64) {
        if self.has_prefetch_task.load(Ordering::Relaxed) {
            self.missed.fetch_add(tokens, Ordering::Relaxed);
            self.want_more();
        }
    }

    /// Drops the prefetched tokens.
    pub(super) fn drop_tokens(&self) {
        self.slots.0.empty(0);
        self.slots.0.empty(1);
    }
}
