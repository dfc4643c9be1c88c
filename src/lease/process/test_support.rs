//! Access to [`Tokens`] for tests and the model.

use tokio::time::Instant;

use crate::key::Key;
use crate::lease::kind::Kind;
use crate::lease::namespace::Leases;
use crate::lease::process::Tokens;
use crate::lease::process::entry::Stage;
use crate::lease::process::event::Host;
use crate::lease::process::owed::Owed;
use crate::sync::lock;

impl<K: Kind> Leases<K> {
    /// Returns whether the waiters of a key have a place in the store's queue, or wait for a lease that this process
    /// holds.
    pub(crate) fn is_placed(&self, key: &Key) -> bool {
        lock(&self.namespace.tokens).tokens.is_placed(key)
    }
}

impl<P: Host> Tokens<P> {
    /// See [`Leases::is_placed`].
    pub(crate) fn is_placed(&self, key: &Key) -> bool {
        let mut entries = self.entries.values().filter(|entry| entry.key == *key);
        entries.any(|entry| !matches!(entry.stage, Stage::Acquiring { .. }))
    }
}

/// For the model, in which each timer may fire at any time.
impl<P: Host> Tokens<P> {
    /// Makes all entries due.
    pub(crate) fn make_due(&mut self, at: Instant) {
        let ids: Vec<_> = self.entries.keys().copied().collect();
        ids.into_iter().for_each(|id| self.set_due(id, Some(at)));
    }

    /// Forgets the owed releases.
    pub(crate) fn forget_owed(&mut self) {
        self.owed = Owed::new(self.rules.releases);
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
