//! Cached refusals. The latest state from the store bounds the number of tokens that the bucket can have now. As
//! many requests may ask the store; the others are refused without a call.
//!
//! The store would give the same answer, unless other processes gave tokens back, reset the bucket, or charged it
//! under raised quotas. The cache learns these changes after at most one second.
//!
//! The state in an answer may contain requests whose own answers are not read yet. Until then these count twice, so a
//! request may be refused for the last tokens.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::entry::Entry;
use super::thread_local_entry::ThreadLocalEntry;
use super::{BucketState, Decision, Local, Table};
use crate::Key;
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use crate::token_bucket::state::Ask;

/// How long a stored state is used, µs.
const LONGEST: i64 = 1_000_000;

/// A request that asks the store.
pub(crate) struct Asked {
    /// Stores the answer.
    pub(super) learns: Option<(Local, Key)>,
    /// The entry whose requests in flight contain this one, until this is dropped.
    pub(super) in_flight_of: Option<Arc<Entry>>,
    pub(super) cost: i64,
    pub(super) sent: i64,
}

impl ThreadLocalEntry {
    /// The refusal of a request, or the entry that counts it as in flight; it is not counted if there is no usable
    /// state. See [`Local::answer`] for `is_alone`.
    pub(super) fn gate(
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
                    // Some of them were answered meanwhile, and may count in the state already.
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

    /// Decides a request by the stored state, after the requests in flight. Returns the refusal, if any.
    #[inline]
    fn refused(&self, now: i64, ask: Ask, in_flight: i64) -> Option<Decision> {
        let (quotas, last_state) = (&self.quotas, &self.entry.last_state);
        let (time, mut bucket) = (last_state.time(now), last_state.bucket(quotas));
        if in_flight > 0 {
            bucket.charge(quotas, time, in_flight);
        }
        (!bucket.take(quotas, time, ask)).then(|| self.decision(ask, false, now, bucket))
    }
}

impl Entry {
    /// Stores the state in the answer to a request sent at `sent`, unless the answer is outdated, or a later one is stored.
    /// The state bounds the requests to the store until `known_until`.
    pub(super) fn learn(
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

    /// Removes the cached refusal. The [table](Table::outdate) is outdated first.
    pub(super) fn open(&self) {
        let _learning = lock(&self.learning);
        self.known_until.store(0, Ordering::Release);
    }
}

impl Asked {
    /// Stores the answer of the store: whether it admitted the request, and the state after that.
    pub(crate) fn answered(mut self, admitted: bool, state: &BucketState) {
        // Before its tokens count in the state.
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
                // If there is no room for an entry, the answer is not stored.
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

    /// The request is not in flight any more. Returns the entry that counted it.
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
