//! The maximum number of keys, and of bytes, in an in-memory store.

use crate::error::Error;
use crate::macros::in_range;
use crate::store::memory::sweeper::{By, Cursor, Sweeper};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, try_lock};
use crate::telemetry::server::Server;

/// The bounds of an in-memory store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_keys: usize,
    pub(crate) max_bytes: usize,
}

impl Bounds {
    /// The bounds of a store in memory.
    pub(crate) const DEFAULT: Self = Self {
        max_keys: 1_000_000,
        max_bytes: 256 << 20,
    };
    /// The bounds of the memory that replaces a store on Redis during an outage.
    pub(crate) const LOCAL_SHARE: Self = Self {
        max_keys: 1_000_000,
        max_bytes: 48 << 20,
    };
    #[cfg(any(test, interleavings))]
    pub(crate) const NONE: Self = Self {
        max_keys: usize::MAX,
        max_bytes: usize::MAX,
    };

    #[cfg(any(test, interleavings))]
    pub(crate) fn keys(max_keys: Option<usize>) -> Self {
        Self {
            max_keys: max_keys.unwrap_or(usize::MAX),
            ..Self::NONE
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        in_range("max_keys", 1.., "1 or more", self.max_keys)?;
        in_range("max_bytes", 1 << 16.., "65536 or more", self.max_bytes)
    }
}

/// Counts the cells of all namespaces of a store, and their bytes.
pub(super) struct Bound {
    max: Bounds,
    /// The number of stored cells, including expired ones. Never above the maximum.
    cells: AtomicUsize,
    /// The bytes of all stored cells. Exceeds the maximum only by the growth of cells that were already stored.
    bytes: AtomicUsize,
    /// Prepared in advance, so that a refusal is cheap.
    too_many: Error,
    pub(super) too_large: Error,
    search: Mutex<Search>,
    telemetry: Server,
}

/// The search for expired cells by steps that find the store full.
#[derive(Default)]
struct Search {
    cursor: Cursor,
    /// When the last search found nothing, in µs.
    failed: Option<i64>,
}

/// The number of cells that a search examines, not counting the rest of the last shard, which has 1/256 of the cells of
/// its namespace.
const CELLS_PER_SEARCH: usize = 1024;

/// The pause after a search that found nothing, in µs. A search costs 100 times as much as a refusal.
const REST: u64 = 1000;

impl Bound {
    pub(super) fn new(max: Bounds) -> Self {
        let Bounds {
            max_keys,
            max_bytes,
        } = max;
        let too_many = format!("it already has state for {max_keys} keys, the maximum (max_keys)");
        let too_large =
            format!("its state in memory would take more than {max_bytes} bytes (max_bytes)");
        Self {
            max,
            cells: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            too_many: Error::overloaded(too_many),
            too_large: Error::overloaded(too_large),
            search: Mutex::default(),
            telemetry: Server::new("in-memory"),
        }
    }

    /// Whether keys without state must be removed at once. Otherwise they keep their memory until the sweeper comes, so
    /// that the next step is cheaper.
    pub(super) fn is_tight(&self) -> bool {
        self.cells.load(Ordering::Relaxed) >= self.max.max_keys / 2
            || self.bytes.load(Ordering::Relaxed) >= self.max.max_bytes / 2
    }

    /// Counts one more cell of `bytes`, before it is stored.
    pub(super) fn take(&self, bytes: usize) -> Result<(), Error> {
        let more = |cells: usize| (cells < self.max.max_keys).then_some(cells + 1);
        if self
            .cells
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_err()
        {
            return Err(self.too_many.clone());
        }
        let more = |taken: usize| {
            taken
                .checked_add(bytes)
                .filter(|sum| *sum <= self.max.max_bytes)
        };
        if self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_err()
        {
            self.cells.fetch_sub(1, Ordering::Relaxed);
            return Err(self.too_large.clone());
        }
        Ok(())
    }

    /// Updates the bytes of a cell that existed before a step.
    pub(super) fn changed(&self, before: usize, after: usize) {
        // Wraps around if the cell has shrunk.
        self.bytes
            .fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Reports a refused step to telemetry. Must be called without a lock.
    pub(super) fn refused(&self) {
        self.telemetry.overloaded(1, || 0);
    }

    /// Stops counting cells after they were removed.
    pub(super) fn give_back(&self, cells: usize, bytes: usize) {
        if cells > 0 {
            self.cells.fetch_sub(cells, Ordering::Relaxed);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Whether there is room for more cells, with `bytes` in total.
    pub(super) fn has_room(&self, cells: usize, bytes: usize) -> bool {
        self.max
            .max_keys
            .saturating_sub(self.cells.load(Ordering::Relaxed))
            >= cells
            && self
                .max
                .max_bytes
                .saturating_sub(self.bytes.load(Ordering::Relaxed))
                >= bytes
    }

    /// Searches for expired cells with bounded work, until there is room for `cells` more cells with `bytes` in total,
    /// and leaves the rest to the sweeper. It continues where the previous search ended. The calling step must not hold
    /// the lock of its own shard; it may hold the lock of a shard of another namespace.
    pub(super) fn search(&self, sweeper: &Sweeper, now: i64, cells: usize, bytes: usize) {
        let Some(mut search) = try_lock(&self.search) else {
            return;
        };
        if search
            .failed
            .is_some_and(|failed| now.abs_diff(failed) < REST)
        {
            return;
        }
        let mut looked = 0;
        let mut ends = 0;
        while !self.has_room(cells, bytes) && looked < CELLS_PER_SEARCH && ends < 2 {
            match sweeper.visit(&mut search.cursor, By::Step(now)) {
                Some(visit) => looked += visit.cells.max(1),
                None => {
                    search.cursor = Cursor::default();
                    ends += 1;
                }
            }
        }
        search.failed = (!self.has_room(cells, bytes)).then_some(now);
        if search.failed.is_some() {
            sweeper.press();
        }
    }

    #[cfg(any(test, interleavings))]
    pub(super) fn cells(&self) -> usize {
        self.cells.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}
