//! The copies of entries that each thread keeps. Threads that decide about one key at the same time usually write
//! to no shared memory.

use std::cell::RefCell;
use std::sync::Arc;

use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::quotas::Quotas;
use crate::bucket::{Ask, Bucket};
use crate::key::Key;
use crate::sync::thread_local;
use crate::token_bucket::local::entry::Entry;

const PLACES: usize = 16;

/// A thread takes the share `1 / 2^SHARE_BITS` of a batch of tokens at a time: one 64th.
const SHARE_BITS: u32 = 6;

type Entries = [Option<ThreadLocalEntry>; PLACES];

thread_local! {
    static ENTRIES: RefCell<Entries> = const { RefCell::new([const { None }; PLACES]) };
}

pub(crate) struct ThreadLocalEntry {
    pub(crate) entry: Arc<Entry>,
    /// A copy, so that usually only one thread changes its reference count.
    pub(crate) quotas: Quotas,
    /// Prefetched tokens, usable before `deadline` (µs).
    tokens: i64,
    deadline: i64,
    /// Whether this thread took tokens of the entry before. Only then does it take a share. Entries that alternate in a
    /// place take single tokens, so that no tokens are left in a replaced copy.
    stays: bool,
}

/// Calls `act` with this thread's copy of an entry. If there is no copy, `find` finds the entry.
#[inline]
pub(crate) fn with<R>(
    table: u64,
    key: &Key,
    quotas: &Quotas,
    find: impl FnOnce() -> Option<Arc<Entry>>,
    act: impl FnOnce(&mut ThreadLocalEntry) -> R,
) -> Option<R> {
    let act = |entries: &RefCell<Entries>| {
        let mut entries = entries.try_borrow_mut().ok()?;
        let place = &mut entries[place(table, key, quotas)];
        if !place.as_ref().is_some_and(|copy| {
            copy.entry.table == table && copy.entry.is_of(key, quotas) && !copy.entry.is_gone()
        }) {
            let entry = find()?;
            let quotas = entry.quotas.copy();
            *place = Some(ThreadLocalEntry {
                entry,
                quotas,
                tokens: 0,
                deadline: 0,
                stays: false,
            });
        }
        place.as_mut().map(act)
    };
    // Fails when the thread is ending.
    ENTRIES.try_with(act).ok().flatten()
}

/// The place of an entry. Entries with the same place replace each other.
fn place(table: u64, key: &Key, quotas: &Quotas) -> usize {
    let bytes = key.as_bytes();
    let last = bytes.last_chunk::<8>().map_or_else(
        || {
            bytes
                .iter()
                .fold(0, |mixed, byte| mixed << 8 | u64::from(*byte))
        },
        |last| u64::from_le_bytes(*last),
    );
    let owner = (table << 32) ^ (quotas.id() as u64 >> 4) ^ bytes.len() as u64;
    let mixed =
        (last.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ owner).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 60) as usize % PLACES
}

impl ThreadLocalEntry {
    /// Admits a request with prefetched tokens.
    #[inline]
    pub(crate) fn take(&mut self, now: i64, ask: Ask) -> Option<Decision> {
        let last_state = &self.entry.last_state;
        if last_state.is_blocked(now) {
            return None;
        }
        if self.tokens < ask.cost || now >= self.deadline {
            let share = if self.stays {
                SHARE_BITS
            } else {
                u64::BITS - 1
            };
            let taken = self.entry.take(now, ask.cost, share)?;
            // Keeps the rest of an earlier share of the same batch.
            let kept = if taken.deadline == self.deadline {
                self.tokens
            } else {
                0
            };
            (self.tokens, self.deadline, self.stays) = (kept + taken.count, taken.deadline, true);
        }
        self.tokens -= ask.cost;
        let mut bucket = last_state.bucket(&self.quotas);
        let slots = &self.entry.slots.0;
        bucket.hold(
            &self.quotas,
            last_state.time(now),
            self.tokens + slots.left(0) + slots.left(1),
        );
        Some(self.decision(ask, true, now, bucket))
    }

    #[inline]
    pub(crate) fn decision(&self, ask: Ask, admitted: bool, now: i64, bucket: Bucket) -> Decision {
        let state = BucketState {
            quotas: self.quotas.clone(),
            now: self.entry.last_state.time(now),
            bucket,
        };
        Decision {
            is_local: true,
            ..Decision::new(ask.cost, admitted, state)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::bucket::quota::Quota;

    #[test]
    fn entries_use_many_places() {
        let quotas = |burst| Quotas::new([Quota::per_second(3).burst(burst)]).unwrap();
        let (key, set, sets) = (
            Key::from("k"),
            quotas(1),
            (1..200).map(quotas).collect::<Vec<_>>(),
        );
        let key_of = |n: u64, length: usize| Key::from(format!("{n:x>length$}"));
        let many = [
            (0..200)
                .map(|n| place(1, &key_of(n, 3), &set))
                .collect::<HashSet<_>>(),
            (0..200).map(|n| place(1, &key_of(n, 20), &set)).collect(),
            (0..200).map(|table| place(table, &key, &set)).collect(),
            sets.iter().map(|set| place(1, &key, set)).collect(),
        ];
        assert!(
            many.iter().all(|places| places.len() > PLACES / 2),
            "{many:?}"
        );
    }
}
