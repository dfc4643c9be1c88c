//! What tests ask of [`Tokens`], and what the model does with it.

use tokio::time::Instant;

use super::super::admission::Leases;
use super::super::kind::Kind;
use super::{Party, Slot, Stage, Tokens};
use crate::sync::lock;
use crate::{Error, Key};

impl<K: Kind> Leases<K> {
    /// Returns whether the waiters of a key have a place in the store's queue, or wait for a lease that this
    /// process holds.
    pub(crate) fn is_placed(&self, key: &Key) -> bool {
        lock(&self.admission.tokens).tokens.is_placed(key)
    }

    /// Returns whether a lease of a key is offered to a waiter that has not accepted it.
    pub(crate) fn has_offered(&self, key: &Key) -> bool {
        lock(&self.admission.tokens).tokens.is_offered(key)
    }
}

impl<P: Party> Tokens<P> {
    /// Returns whether the waiters for a key have a place in the queue of the store, or wait for a lease of this
    /// process.
    pub(crate) fn is_placed(&self, key: &Key) -> bool {
        let mut entries = self.entries.values().filter(|entry| entry.key == *key);
        entries.any(|entry| !matches!(entry.stage, Stage::Acquiring { .. }))
    }

    /// Records that the last call for an entry found the store unavailable.
    pub(crate) fn is_in_outage(&mut self, id: u64, error: &Error) {
        self.set_outage(id, Some(error));
    }

    /// Returns whether a lease of a key is offered to a waiter that has not accepted it.
    pub(crate) fn is_offered(&self, key: &Key) -> bool {
        let mut entries = self.entries.values().filter(|entry| entry.key == *key);
        entries.any(|entry| entry.held().is_some_and(|held| held.offered.is_some()))
    }
}

/// For the model, in which the time of each timer comes at any time.
impl<P: Party> Tokens<P> {
    /// Makes all entries due.
    pub(in super::super) fn make_due(&mut self, at: Instant) {
        let ids: Vec<_> = self.entries.keys().copied().collect();
        ids.into_iter().for_each(|id| self.set_due(id, Some(at)));
    }

    /// Forgets the releases that are sent again until they are answered.
    pub(in super::super) fn forget_owed(&mut self) {
        self.owed.clear();
        self.unsent.clear();
        self.due.retain(|(_, slot)| matches!(slot, Slot::Entry(_)));
    }

    /// Removes all entries. Returns their waiters.
    pub(in super::super) fn drop_all(&mut self) -> Vec<P::Waiter> {
        let ids: Vec<_> = self.entries.keys().copied().collect();
        let entries = ids.into_iter().filter_map(|id| self.remove(id));
        entries.flat_map(|mut entry| entry.line.drain().collect::<Vec<_>>()).collect()
    }
}
