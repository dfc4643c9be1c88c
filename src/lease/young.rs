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
        let is_grown_up = |due: Option<Instant>| now.is_none_or(|now| due.is_some_and(|due| due <= now));
        let grown_up = self.leases.extract_if(|_, (_, due)| is_grown_up(*due)).map(|(_, leased)| leased);
        let grown_up = grown_up.collect();
        self.next = self.leases.values().filter_map(|(_, due)| *due).min();
        grown_up
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Mutex, Store};

    #[tokio::test]
    async fn leases_grow_up_once_they_are_to_be_renewed() {
        let lock = Mutex::new(&Store::in_memory(), "m").unwrap().try_lock("k").await.unwrap();
        let (began, mut young) = (Instant::now(), Young::default());
        let at = |ms| Some(began + Duration::from_millis(ms));
        assert_eq!((young.due(), young.grown_up(at(0)).len()), (None, 0));
        for (id, renew) in [(1, at(10)), (2, at(5)), (3, None), (4, at(10)), (5, at(20))] {
            young.insert(id, (lock.handle(), renew));
        }
        let mut grown_up = |now| {
            let mut due: Vec<_> = young.grown_up(now).into_iter().map(|(_, renew)| renew).collect();
            due.sort_unstable();
            (due, young.due())
        };
        assert_eq!(grown_up(at(4)), (vec![], at(5)));
        assert_eq!(grown_up(at(5)), (vec![at(5)], at(10)));
        assert_eq!(grown_up(at(9)), (vec![], at(10)));
        assert_eq!(grown_up(at(10)), (vec![at(10); 2], at(20)));
        young.insert(6, (lock.handle(), at(15)));
        assert!(young.remove(6).is_some() && young.remove(6).is_none() && young.remove(1).is_none());
        // The end of a lease does not change when it is looked for the next one.
        let mut grown_up = |now| (young.grown_up(now).len(), young.due());
        assert_eq!([14, 15].map(|ms| grown_up(at(ms))), [(0, at(15)), (0, at(20))]);
        assert_eq!(grown_up(None), (2, None), "all, also what is never renewed");
    }
}
