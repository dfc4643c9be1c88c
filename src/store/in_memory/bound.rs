//! The maximum number of keys for which an in-memory store keeps state.

use super::sweeper::{By, Cursor, Sweeper};
use crate::Error;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, try_lock};
use crate::telemetry::Server;

/// Counts the cells of all namespaces of a store.
pub(super) struct Bound {
    max: usize,
    /// The number of stored cells, including expired ones. Never above `max`.
    cells: AtomicUsize,
    /// Prepared, so that a refusal is cheap.
    refusal: Error,
    search: Mutex<Search>,
    telemetry: Server,
}

/// The search for expired cells by steps that find the store full.
#[derive(Default)]
struct Search {
    cursor: Cursor,
    /// When the latest search found nothing, in µs.
    failed: Option<i64>,
}

/// The number of cells that a search looks at, not counting the rest of the last shard, which has a 256th of the cells of its
/// namespace.
const CELLS_PER_SEARCH: usize = 1024;

/// The pause after a search that found nothing, in µs. A search costs 100 times as much as a refusal.
const REST: u64 = 1000;

impl Bound {
    pub(super) fn new(max: usize) -> Self {
        let text = format!("it already has state for {max} keys, the maximum (max_keys)");
        Self {
            max,
            cells: AtomicUsize::new(0),
            refusal: Error::overloaded(text),
            search: Mutex::default(),
            telemetry: Server::new("in-memory"),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        !self.has_room(1)
    }

    /// Counts one more cell, before it is stored.
    pub(super) fn take(&self) -> Result<(), Error> {
        let more = |cells: usize| (cells < self.max).then_some(cells + 1);
        match self.cells.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.refusal.clone()),
        }
    }

    /// Reports a refused step to the telemetry. Must be called without a lock.
    pub(super) fn refused(&self) {
        self.telemetry.overloaded(1, || 0);
    }

    /// Stops counting cells after they were removed.
    pub(super) fn give_back(&self, cells: usize) {
        if cells > 0 {
            self.cells.fetch_sub(cells, Ordering::Relaxed);
        }
    }

    fn has_room(&self, cells: usize) -> bool {
        self.max.saturating_sub(self.cells.load(Ordering::Relaxed)) >= cells
    }

    /// Searches for expired cells with bounded work, until there is `room` for so many, and leaves the rest to the
    /// sweeper. It continues where the previous search ended. The calling step must not have locked its own shard; it may
    /// have locked a shard of another namespace.
    pub(super) fn search(&self, sweeper: &Sweeper, now: i64, room: usize) {
        let Some(mut search) = try_lock(&self.search) else { return };
        if search.failed.is_some_and(|failed| now.abs_diff(failed) < REST) {
            return;
        }
        let (mut looked, mut ends) = (0, 0);
        while !self.has_room(room) && looked < CELLS_PER_SEARCH && ends < 2 {
            match sweeper.visit(&mut search.cursor, By::Step(now)) {
                Some(visit) => looked += visit.cells.max(1),
                None => {
                    search.cursor = Cursor::default();
                    ends += 1;
                }
            }
        }
        search.failed = (!self.has_room(room)).then_some(now);
        if search.failed.is_some() {
            sweeper.press();
        }
    }

    #[cfg(any(test, interleavings))]
    pub(super) fn cells(&self) -> usize {
        self.cells.load(Ordering::Relaxed)
    }
}
