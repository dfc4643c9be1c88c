//! Which leases are to be renewed when.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::held::Held;
use crate::Store;
use crate::store::{Scheduler, lock};

/// The leases of a namespace that are renewed, by their numbers.
#[derive(Debug)]
pub(crate) struct Renewals {
    scheduler: Arc<Scheduler>,
    ttl: Duration,
    watchdog: bool,
    began: Instant,
    table: Mutex<HashMap<u64, Renewal>>,
}

#[derive(Debug)]
struct Renewal {
    held: Arc<Held>,
    /// `None` while it is under way.
    due: Option<Instant>,
}

impl Renewals {
    pub(crate) fn new(store: &Store, ttl: Duration, watchdog: bool) -> Self {
        let scheduler = Arc::clone(store.scheduler());
        Self { scheduler, ttl, watchdog, began: Instant::now(), table: Mutex::default() }
    }

    /// Sees to a lease: until it is forgotten, or without a watchdog until a claim has become a full lease.
    pub(crate) fn add(&self, number: u64, held: &Arc<Held>, claim: Option<Duration>) {
        if self.watchdog || claim.is_some() {
            let span = claim.map_or(self.ttl, |claim| claim.min(self.ttl));
            self.resume(number, held, self.about(Instant::now() + span / 3));
        }
    }

    /// Stops seeing to a lease that is handed on; when it is to be renewed by whom it is handed on to.
    pub(crate) fn hand_on(&self, number: u64) -> Instant {
        let now = Instant::now();
        match lock(&self.table).remove(&number) {
            Some(Renewal { due: Some(due), .. }) => due,
            // Under way: seen to again in case that fails.
            Some(Renewal { due: None, .. }) => now + self.soon(),
            // Without a watchdog each has a full lease.
            None => now,
        }
    }

    /// Sees to a lease that was handed on.
    pub(crate) fn resume(&self, number: u64, held: &Arc<Held>, due: Instant) {
        lock(&self.table).insert(number, Renewal { held: Arc::clone(held), due: Some(due) });
        self.scheduler.schedule(due);
    }

    /// After how long a renewal is tried again.
    fn soon(&self) -> Duration {
        (self.ttl / 12).max(Duration::from_millis(20))
    }

    pub(crate) fn forget(&self, number: u64) {
        lock(&self.table).remove(&number);
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        lock(&self.table).values().filter_map(|renewal| renewal.due).min()
    }

    /// What was under way has ended with its runtime.
    pub(crate) fn interrupted(&self) {
        let now = Instant::now();
        for renewal in lock(&self.table).values_mut() {
            renewal.due = renewal.due.or(Some(now));
        }
    }

    /// The leases that are to be renewed now.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<(u64, Arc<Held>)> {
        let mut table = lock(&self.table);
        let due = table.iter_mut().filter_map(|(number, renewal)| {
            renewal.due.take_if(|due| *due <= now).map(|_| (*number, Arc::clone(&renewal.held)))
        });
        due.collect()
    }

    /// Notes whether a lease was renewed. One that was not, and is still held, is tried again soon.
    pub(crate) fn settle(&self, number: u64, held: &Held, renewed: bool) {
        let due = match renewed {
            true if self.watchdog => Some(self.about(Instant::now() + self.ttl / 3)),
            false if held.is_held() => Some(Instant::now() + self.soon()),
            _ => None,
        };
        if !renewed && due.is_none() {
            held.counts.lost();
        }
        let mut table = lock(&self.table);
        match (due, table.get_mut(&number)) {
            (Some(_), Some(renewal)) => renewal.due = due,
            _ => drop(table.remove(&number)),
        }
    }

    /// A time a little earlier, so that what is due at about the same time is done together.
    fn about(&self, due: Instant) -> Instant {
        let until = due.saturating_duration_since(Instant::now());
        let grain = (self.ttl / 24).min(until / 2).as_nanos().max(1);
        let late = due.duration_since(self.began).as_nanos() % grain;
        due - Duration::from_nanos(u64::try_from(late).unwrap_or(0))
    }
}
