//! What tests read from [`Tokens`], and what the model does with it.

use tokio::time::Instant;

use crate::key::Key;
use crate::lease::kind::Kind;
use crate::lease::namespace::Leases;
use crate::lease::process::entry::Stage;
use crate::lease::process::event::Party;
use crate::lease::process::{Slot, Tokens};
use crate::sync::lock;

impl<K: Kind> Leases<K> {
    /// Returns whether the waiters of a key have a place in the store's queue, or wait for a lease that this
    /// process holds.
    pub(crate) fn is_placed(&self, key: &Key) -> bool {
        lock(&self.admission.tokens).tokens.is_placed(key)
    }
}

impl<P: Party> Tokens<P> {
    /// Returns whether the waiters for a key have a place in the queue of the store, or wait for a lease of this
    /// process.
    pub(crate) fn is_placed(&self, key: &Key) -> bool {
        let mut entries = self.entries.values().filter(|entry| entry.key == *key);
        entries.any(|entry| !matches!(entry.stage, Stage::Acquiring { .. }))
    }
}

/// For the model, in which the time of each timer comes at any time.
impl<P: Party> Tokens<P> {
    /// Makes all entries due.
    pub(crate) fn make_due(&mut self, at: Instant) {
        let ids: Vec<_> = self.entries.keys().copied().collect();
        ids.into_iter().for_each(|id| self.set_due(id, Some(at)));
    }

    /// Forgets the releases that are sent again until they are answered.
    pub(crate) fn forget_owed(&mut self) {
        self.owed.clear();
        self.unsent.clear();
        self.due.retain(|(_, slot)| matches!(slot, Slot::Entry(_)));
    }

    /// Removes all entries. Returns their waiters.
    pub(crate) fn drop_all(&mut self) -> Vec<P::Waiter> {
        let ids: Vec<_> = self.entries.keys().copied().collect();
        let entries = ids.into_iter().filter_map(|id| self.remove(id));
        entries
            .flat_map(|mut entry| entry.line.drain().collect::<Vec<_>>())
            .collect()
    }
}
