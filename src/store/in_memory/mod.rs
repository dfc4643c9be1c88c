//! The in-memory store: state of this process alone.
//!
//! A namespace is a set of cells, one for each key that has state. Steps on cells run inline, on the thread of the
//! caller. The sweeper drops expired cells and frees their memory.

mod bound;
mod cells;
mod clock;
mod shard;
mod sweeper;
#[cfg(test)]
mod tests;

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use self::bound::Bound;
pub(crate) use self::cells::Cells;
pub(crate) use self::clock::{Clock, callers_clock_is_the_systems};
use self::sweeper::Sweeper;
use super::Store;
use super::background::Background;
use super::builder::PREFIX;
use super::names::Names;
use super::notifier::{Link, Notifier};
use super::operation::Cell;
use super::scheduler::Scheduler;

/// The state of all namespaces, shared by the clones of a store.
pub(crate) struct InMemory {
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) names: Names,
    pub(crate) local_share: OnceLock<Store>,
    pub(crate) prefix: String,
    shared: Arc<Shared>,
}

/// The parts that all namespaces of a store share.
struct Shared {
    clock: Clock,
    notifier: Arc<Notifier>,
    bound: Option<Bound>,
    /// A namespace lives as long as it is referenced. The sweeper references those that have cells.
    namespaces: Mutex<HashMap<Name, Weak<dyn Any + Send + Sync>>>,
    sweeper: Arc<Sweeper>,
}

/// The name of a namespace, and the type of its cells.
type Name = (Box<str>, TypeId);

impl InMemory {
    pub(crate) fn new(clock: Clock, max_keys: Option<usize>) -> Self {
        let notifier = Arc::new(Notifier::new(Link::Up(0)));
        let scheduler = Scheduler::new(notifier.link(), Background::thread(), true);
        let shared = Arc::new(Shared {
            clock,
            notifier: notifier.clone(),
            bound: max_keys.map(Bound::new),
            namespaces: Mutex::default(),
            sweeper: Arc::default(),
        });
        let (names, local_share, prefix) = (Names::default(), OnceLock::new(), PREFIX.to_owned());
        Self { notifier, scheduler, names, local_share, prefix, shared }
    }

    /// Returns the cells of a namespace. All callers with the same name get the same cells.
    pub(crate) fn cells<C: Cell>(&self, namespace: &str) -> Arc<Cells<C>> {
        let name = (namespace.into(), TypeId::of::<C>());
        let mut namespaces = lock(&self.shared.namespaces);
        let known = namespaces.get(&name).and_then(Weak::upgrade);
        // The type is part of the name, so this does not fail.
        if let Some(Ok(cells)) = known.map(Arc::downcast) {
            return cells;
        }
        let cells = Cells::new(Arc::clone(&self.shared), Some(name.clone()));
        let weak: Weak<Cells<C>> = Arc::downgrade(&cells);
        namespaces.insert(name, weak);
        cells
    }

    /// Returns the names of the namespaces with this type of cells.
    pub(crate) fn names_of<C: Cell>(&self) -> Vec<String> {
        let namespaces = lock(&self.shared.namespaces);
        let of_type = namespaces.keys().filter(|(_, cells)| *cells == TypeId::of::<C>());
        of_type.map(|(name, _)| name.to_string()).collect()
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.shared.sweeper.disown();
        self.scheduler.look_again();
    }
}

impl Shared {
    /// Removes the name of cells that were dropped, unless new cells of this name exist.
    fn forget(&self, name: &Name) {
        let mut namespaces = lock(&self.namespaces);
        if namespaces.get(name).is_some_and(|cells| cells.strong_count() == 0) {
            namespaces.remove(name);
        }
        if namespaces.len() < namespaces.capacity() / 4 {
            let few = 2 * namespaces.len();
            namespaces.shrink_to(few);
        }
    }
}

/// Locks a mutex and ignores poisoning: a step that panics leaves cells consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

debug!(InMemory);
