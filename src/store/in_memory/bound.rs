//! How many keys a store keeps state for at most.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use super::sweeper::{By, Cursor, Sweeper};
use crate::Error;
use crate::telemetry::Server;

/// Counts the cells of all namespaces of a store.
pub(super) struct Bound {
    max: usize,
    /// The cells that are stored, also where they have expired: never more than `max`.
    cells: AtomicUsize,
    /// Made once, since refusals should be cheap.
    refusal: Error,
    search: Mutex<Search>,
    telemetry: Server,
}

/// The search for expired cells by steps that find the store full.
#[derive(Default)]
struct Search {
    cursor: Cursor,
    /// When the latest search found nothing, µs.
    failed: Option<i64>,
}

/// A search looks at so many cells, and at those of the last table (up to 900).
const CELLS_PER_SEARCH: usize = 1024;

/// For how long after a search without success there is no other, µs: a search is 100 times as dear as a refusal.
const REST: u64 = 1000;

impl Bound {
    pub(super) fn new(max: usize) -> Self {
        let text = format!("it keeps state for {max} keys (max_keys), and takes no other key");
        Self {
            max,
            cells: AtomicUsize::new(0),
            refusal: Error::overloaded(text),
            search: Mutex::default(),
            telemetry: Server::new("in-memory"),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.cells.load(Ordering::Relaxed) >= self.max
    }

    /// Counts one more cell, before it is stored.
    pub(super) fn take(&self) -> Result<(), Error> {
        let more = |cells: usize| (cells < self.max).then_some(cells + 1);
        match self.cells.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.refusal.clone()),
        }
    }

    /// Tells of a step that was refused. To be called without a lock.
    pub(super) fn refused(&self) {
        self.telemetry.overloaded(1, || 0);
    }

    /// Counts cells no longer, after they were removed.
    pub(super) fn give_back(&self, cells: usize) {
        if cells > 0 {
            self.cells.fetch_sub(cells, Ordering::Relaxed);
        }
    }

    /// Looks for expired cells with bounded work, and leaves the rest to the sweeper. Goes on where the search before
    /// ended. To be called by a step that has not locked its own shard; it may have locked one of another namespace.
    pub(super) fn search(&self, sweeper: &Sweeper, now: i64) {
        let mut search = match self.search.try_lock() {
            Ok(search) => search,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return,
        };
        if search.failed.is_some_and(|failed| now.abs_diff(failed) < REST) {
            return;
        }
        let (mut looked, mut ends) = (0, 0);
        while self.is_full() && looked < CELLS_PER_SEARCH && ends < 2 {
            match sweeper.visit(&mut search.cursor, By::Step(now)) {
                Some(visit) => looked += visit.cells.max(1),
                None => {
                    search.cursor = Cursor::default();
                    ends += 1;
                }
            }
        }
        search.failed = self.is_full().then_some(now);
        if search.failed.is_some() {
            sweeper.press();
        }
    }

    #[cfg(test)]
    pub(super) fn cells(&self) -> usize {
        self.cells.load(Ordering::Relaxed)
    }
}
