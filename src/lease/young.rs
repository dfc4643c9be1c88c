//! Leases that were acquired at once, until they are renewed for the first time.
//!
//! Most leases end before that. Until then nobody waits behind them in this process, so they need nothing of the
//! [tokens](super::tokens), and are no more than an entry in a map.

use hashbrown::HashMap;
use tokio::time::Instant;

use super::state::LeaseHandle;

/// A lease, and when it is renewed, if it is.
pub(super) type Leased = (LeaseHandle, Option<Instant>);

#[derive(Default)]
pub(super) struct Young {
    leases: HashMap<u64, Leased>,
    /// Not later than the first renewal: leases that have ended do not change it.
    next: Option<Instant>,
}

impl Young {
    /// Returns when the first lease may have to be renewed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }

    pub(super) fn insert(&mut self, id: u64, leased: Leased) {
        self.next = [self.next, leased.1].into_iter().flatten().min();
        self.leases.insert(id, leased);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Leased> {
        self.leases.remove(&id)
    }

    /// Removes the leases that are to be renewed until `now`, or all.
    pub(super) fn grown_up(&mut self, now: Option<Instant>) -> Vec<Leased> {
        if now.is_some_and(|now| self.next.is_none_or(|next| next > now)) {
            return Vec::new();
        }
        let is_grown_up =
            |due: Option<Instant>| now.is_none_or(|now| due.is_some_and(|due| due <= now));
        let grown_up = self
            .leases
            .extract_if(|_, (_, due)| is_grown_up(*due))
            .map(|(_, leased)| leased);
        let grown_up = grown_up.collect();
        self.next = self.leases.values().filter_map(|(_, due)| *due).min();
        grown_up
    }
}
