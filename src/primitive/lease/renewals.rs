//! The renewals of leases, and when they are due.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::state::LeaseState;
use crate::Store;
use crate::store::{Scheduler, lock};

/// The leases that are renewed, by the ids in their tokens.
#[derive(Debug)]
pub(crate) struct Renewals {
    scheduler: Arc<Scheduler>,
    began: Instant,
    table: Mutex<HashMap<u64, Renewal>>,
}

#[derive(Debug)]
struct Renewal {
    state: Arc<LeaseState>,
    /// `None` while the renewal is under way.
    due: Option<Instant>,
}

/// How long a waiter has to accept an offered lease, or half the ttl if that is shorter.
const PATIENCE: Duration = Duration::from_secs(1);

impl Renewals {
    pub(crate) fn new(store: &Store) -> Self {
        let scheduler = Arc::clone(store.scheduler());
        Self { scheduler, began: Instant::now(), table: Mutex::default() }
    }

    /// Renews a lease until it is forgotten. Without a watchdog, renews it only once, after it was accepted, to
    /// confirm the grant (`confirm`).
    pub(crate) fn add(&self, state: &Arc<LeaseState>, confirm: bool) {
        if state.holding.options.watchdog || confirm {
            let due = self.about(Instant::now() + state.tenure.left() / 3, state.tenure.ttl);
            self.set(state, due);
        }
    }

    /// Tracks a lease for the waiter that it was handed on to.
    pub(super) fn hand_over(&self, state: &Arc<LeaseState>) {
        let now = Instant::now();
        let latest = now + patience(state) / 4;
        let known = lock(&self.table).get(&state.tenure.id).and_then(|renewal| renewal.due);
        self.set(state, known.map_or(latest, |known| known.min(latest)));
    }

    fn set(&self, state: &Arc<LeaseState>, due: Instant) {
        lock(&self.table).insert(state.tenure.id, Renewal { state: Arc::clone(state), due: Some(due) });
        self.scheduler.schedule(due);
    }

    pub(crate) fn forget(&self, id: u64) {
        lock(&self.table).remove(&id);
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        lock(&self.table).values().filter_map(|renewal| renewal.due).min()
    }

    /// The runtime of the renewals under way has shut down: makes them due now.
    pub(crate) fn interrupted(&self) {
        let now = Instant::now();
        for renewal in lock(&self.table).values_mut() {
            renewal.due = renewal.due.or(Some(now));
        }
    }

    /// Returns the leases to renew now. A lease that its waiter has not accepted is not renewed, and is taken back
    /// in time.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<Arc<LeaseState>> {
        let (mut due, mut late) = (Vec::new(), Vec::new());
        for renewal in lock(&self.table).values_mut() {
            if renewal.due.take_if(|due| *due <= now).is_none() {
                continue;
            }
            match renewal.state.tenure.offered() {
                None => due.push(Arc::clone(&renewal.state)),
                Some((_, since)) if now < since + patience(&renewal.state) => {
                    renewal.due = Some(now + patience(&renewal.state) / 4);
                }
                Some((to, _)) => late.push((Arc::clone(&renewal.state.tenure), to)),
            }
        }
        // Not under the lock, since this hands the lease on.
        for (tenure, to) in late {
            tenure.taken_up();
            to.take_back();
        }
        due
    }

    /// Records whether a lease was renewed. If not, and it is still held, the renewal is retried soon.
    pub(crate) fn renewed(&self, state: &LeaseState, renewed: bool) {
        let ttl = state.tenure.ttl;
        let due = match renewed {
            true if state.holding.options.watchdog => Some(self.about(Instant::now() + ttl / 3, ttl)),
            false if state.is_kept() => Some(Instant::now() + (ttl / 12).max(Duration::from_millis(20))),
            _ => None,
        };
        if !renewed && due.is_none() {
            state.lose();
        }
        let mut table = lock(&self.table);
        // It may have been handed on in the meantime.
        let Some(renewal) = table.get_mut(&state.tenure.id).filter(|renewal| renewal.due.is_none()) else {
            return;
        };
        match due {
            Some(_) => renewal.due = due,
            None => drop(table.remove(&state.tenure.id)),
        }
    }

    /// Returns a time a little before `due`, so that renewals that are due at about the same time run together.
    fn about(&self, due: Instant, ttl: Duration) -> Instant {
        let until = due.saturating_duration_since(Instant::now());
        let grain = (ttl / 24).min(until / 2).as_nanos().max(1);
        let late = due.duration_since(self.began).as_nanos() % grain;
        due - Duration::from_nanos(u64::try_from(late).unwrap_or(0))
    }
}

fn patience(state: &LeaseState) -> Duration {
    PATIENCE.min(state.tenure.ttl / 2)
}
