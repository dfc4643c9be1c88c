//! The embedded store: the state of this process alone, in memory.
//!
//! A namespace is a set of cells, one for each key that has state; steps on cells run inline, on the caller's thread. What
//! has expired is dropped by the sweeper, and memory is given back.

mod bound;
mod cells;
mod clock;
mod shard;
mod sweeper;
#[cfg(test)]
mod tests;

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use self::bound::Bound;
pub(crate) use self::cells::Cells;
pub(crate) use self::clock::{Clock, callers_clock_is_the_systems};
use self::sweeper::Sweeper;
use super::background::Background;
use super::names::Names;
use super::notifier::{Link, Notifier};
use super::operation::Cell;
use super::scheduler::Scheduler;

/// The state of all namespaces, shared by the clones of a store.
pub(crate) struct InMemory {
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) names: Names,
    shared: Arc<Shared>,
}

/// What the namespaces of a store have in common.
struct Shared {
    clock: Clock,
    notifier: Arc<Notifier>,
    bound: Option<Bound>,
    /// Namespaces live as long as somebody holds them; the sweeper holds those that have cells.
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
        Self { notifier, scheduler, names: Names::default(), shared }
    }

    /// The cells of a namespace: the same for everybody who asks by the same name.
    pub(crate) fn cells<C: Cell>(&self, namespace: &str) -> Arc<Cells<C>> {
        let name = (namespace.into(), TypeId::of::<C>());
        let mut namespaces = lock(&self.shared.namespaces);
        let known = namespaces.get(&name).and_then(Weak::upgrade);
        // The name has the type, so this does not fail.
        if let Some(Ok(cells)) = known.map(Arc::downcast) {
            return cells;
        }
        let cells = Cells::new(Arc::clone(&self.shared), Some(name.clone()));
        let weak: Weak<Cells<C>> = Arc::downgrade(&cells);
        namespaces.insert(name, weak);
        cells
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.shared.sweeper.disown();
        self.scheduler.look_again();
    }
}

impl Shared {
    /// The cells of a name are gone; others of the same name may have taken their place.
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

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemory").finish_non_exhaustive()
    }
}

/// Locks, also after a panic elsewhere: steps leave cells whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
