//! The in-memory store: state of this process alone.
//!
//! A namespace is a set of cells, one for each key that has state. Steps on cells run inline, on the thread of the
//! caller. The sweeper drops expired cells and frees their memory.

pub(crate) mod bound;
pub(crate) mod cells;
pub(crate) mod clock;
#[cfg(test)]
pub(crate) mod manual_clock;
mod step_all;
pub(crate) mod sweeper;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::store::background::Background;
use crate::store::base::{Base, Names, PREFIX};
use crate::store::memory::bound::{Bound, Bounds};
use crate::store::memory::cells::{Cells, Shared};
use crate::store::memory::clock::Clock;
use crate::store::memory::sweeper::Sweeper;
use crate::store::notifier::Link;
use crate::store::operation::Cell;

/// The state of all namespaces, shared by the clones of a store.
pub(crate) struct InMemory {
    pub(super) base: Base,
    pub(super) namespaces: Names,
    shared: Arc<Shared>,
}

impl InMemory {
    pub(crate) fn new(clock: Clock, bounds: Bounds) -> Self {
        Self::with_background(Background::thread(), clock, bounds)
    }

    pub(crate) fn with_background(home: Background, clock: Clock, bounds: Bounds) -> Self {
        let sweeper = Arc::new(Sweeper::new(home.clone()));
        let base = Base::new(PREFIX.to_owned(), Link::Up(0), home, true);
        let shared = Arc::new(Shared {
            clock,
            notifier: base.notifier.clone(),
            bound: Bound::new(bounds),
            sweeper,
        });
        Self {
            base,
            namespaces: Names::default(),
            shared,
        }
    }

    /// Returns the cells of a namespace. All callers with the same name get the same cells. They live as long as they
    /// are referenced; the sweeper references those that are not empty.
    pub(crate) fn cells<C: Cell>(&self, namespace: &str) -> Arc<Cells<C>> {
        self.namespaces
            .get(namespace, || Cells::new(Arc::clone(&self.shared)))
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.shared.sweeper.disown();
    }
}

debug!(InMemory);
