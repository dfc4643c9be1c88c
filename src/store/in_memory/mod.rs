//! The embedded store: the state of this process alone, in memory.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use hashbrown::HashTable;
use tokio::time::Instant;

use super::key::Key;
use super::notifier::{Link, Notifier};
use super::operation::Cell;
use super::scheduler::Scheduler;

/// The state of all namespaces, shared by the clones of a store.
pub(crate) struct InMemory {
    clock: Clock,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) scheduler: Arc<Scheduler>,
    namespaces: Mutex<HashMap<(String, TypeId), Arc<dyn Any + Send + Sync>>>,
}

impl InMemory {
    pub(crate) fn new(clock: Clock) -> Self {
        let notifier = Arc::new(Notifier::new(Link::Up(0)));
        let scheduler = Scheduler::new(notifier.link(), None);
        Self { clock, notifier, scheduler, namespaces: Mutex::default() }
    }

    /// The cells of a namespace: the same for everybody who asks by the same name.
    pub(crate) fn cells<C: Cell>(&self, namespace: &str) -> Arc<Cells<C>> {
        let fresh = || Arc::new(Cells::<C>::new(self.clock.clone(), self.notifier.clone()));
        let mut namespaces = lock(&self.namespaces);
        let cells = namespaces
            .entry((namespace.to_owned(), TypeId::of::<C>()))
            .or_insert_with(|| fresh() as Arc<dyn Any + Send + Sync>);
        // The key names the type, so this does not fail.
        Arc::clone(cells).downcast().unwrap_or_else(|_| fresh())
    }
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemory").finish_non_exhaustive()
    }
}

/// Microseconds since the Unix epoch that never run backwards.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Set by the system's clock once, then monotonic; follows tokio's paused time.
    System { since: Instant, micros: i64 },
    /// As a test sets it.
    #[cfg(test)]
    Manual(Arc<std::sync::atomic::AtomicI64>),
}

impl Clock {
    pub(crate) fn system() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::System { since: Instant::now(), micros: i64::try_from(unix.as_micros()).unwrap_or(0) }
    }

    fn now(&self) -> i64 {
        match self {
            Self::System { since, micros } => micros + since.elapsed().as_micros() as i64,
            #[cfg(test)]
            Self::Manual(micros) => micros.load(std::sync::atomic::Ordering::Relaxed),
        }
    }
}

/// The cells of one namespace, in shards.
pub(crate) struct Cells<C> {
    clock: Clock,
    notifier: Arc<Notifier>,
    hasher: RandomState,
    shards: Box<[Mutex<Shard<C>>]>,
}

struct Shard<C> {
    cells: HashTable<(Key, C)>,
    /// How many cells there may be before those that say nothing are dropped.
    sweep_at: usize,
}

const SHARDS: usize = 16;
const SWEEP_AT: usize = 256;

impl<C: Cell> Cells<C> {
    /// Cells that belong to no store.
    pub(crate) fn private() -> Self {
        Self::new(Clock::system(), Arc::new(Notifier::new(Link::Down)))
    }

    pub(crate) fn new(clock: Clock, notifier: Arc<Notifier>) -> Self {
        let shard = || Mutex::new(Shard { cells: HashTable::new(), sweep_at: SWEEP_AT });
        Self { clock, notifier, hasher: RandomState::new(), shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// Takes one step on the cell of a key, alone, and wakes whom it concerns.
    pub(crate) fn step<R>(&self, key: &[u8], step: impl FnOnce(&mut C, i64) -> R) -> R {
        let (reply, pushes) = self.step_alone(key, |cell, now| {
            let reply = step(cell, now);
            (reply, cell.pushes())
        });
        for push in pushes {
            self.notifier.deliver(push);
        }
        reply
    }

    fn step_alone<R>(&self, key: &[u8], step: impl FnOnce(&mut C, i64) -> R) -> R {
        // One hash serves twice: its top bits mark the slots of a table, its lowest place them.
        let hash = self.hasher.hash_one(key);
        let mut shard = lock(&self.shards[(hash >> 32) as usize % SHARDS]);
        let now = self.clock.now();
        if let Some((_, cell)) = shard.cells.find_mut(hash, |(other, _)| other.as_bytes() == key) {
            if cell.is_idle(now) {
                *cell = C::default();
            }
            return step(cell, now);
        }
        let mut cell = C::default();
        let reply = step(&mut cell, now);
        if !cell.is_idle(now) {
            if shard.cells.len() >= shard.sweep_at {
                shard.sweep(now);
            }
            let entry = (Key::new(key), cell);
            shard.cells.insert_unique(hash, entry, |(key, _)| self.hasher.hash_one(key.as_bytes()));
        }
        reply
    }
}

impl<C: Cell> Shard<C> {
    fn sweep(&mut self, now: i64) {
        self.cells.retain(|(_, cell)| !cell.is_idle(now));
        self.sweep_at = (2 * self.cells.len()).max(SWEEP_AT);
    }
}

impl<C> fmt::Debug for Cells<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cells").finish_non_exhaustive()
    }
}

/// Locks, also after a panic elsewhere: steps leave cells whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Until(i64);

    impl Cell for Until {
        fn is_idle(&self, now: i64) -> bool {
            self.0 <= now
        }
    }

    #[test]
    fn idle_cells_do_not_pile_up() {
        let time = Arc::new(std::sync::atomic::AtomicI64::new(0));
        let cells = Cells::<Until>::new(Clock::Manual(time.clone()), Arc::new(Notifier::new(Link::Up(0))));
        for i in 0..100_000_i64 {
            time.store(i, std::sync::atomic::Ordering::Relaxed);
            cells.step(i.to_string().as_bytes(), |cell, now| cell.0 = now + 10);
        }
        let kept: usize = cells.shards.iter().map(|shard| lock(shard).cells.len()).sum();
        assert!(kept <= SHARDS * SWEEP_AT, "{kept}");
    }

    fn capacity<C>(cells: &Cells<C>) -> usize {
        cells.shards.iter().map(|shard| lock(shard).cells.capacity()).sum()
    }

    #[track_caller]
    fn eventually(what: &str, is_so: impl Fn() -> bool) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !is_so() {
            assert!(std::time::Instant::now() < until, "never: {what}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn expired_state_is_given_back() {
        let time = Arc::new(std::sync::atomic::AtomicI64::new(0));
        let store = InMemory::new(Clock::Manual(time.clone()));
        let cells = store.cells::<Until>("a");
        for i in 0..100_000 {
            cells.step(i.to_string().as_bytes(), |cell, now| cell.0 = now + 10);
        }
        assert!(capacity(&cells) >= 100_000);
        time.store(10, std::sync::atomic::Ordering::Relaxed);
        eventually("the memory of expired state is given back", || capacity(&cells) == 0);
    }

    #[test]
    fn a_namespace_without_state_that_nobody_holds_is_freed() {
        let time = Arc::new(std::sync::atomic::AtomicI64::new(0));
        let store = InMemory::new(Clock::Manual(time.clone()));
        store.cells::<Until>("kept").step(b"key", |cell, _| cell.0 = 10);
        drop(store.cells::<Until>("unused"));
        eventually("a namespace without state is freed", || lock(&store.namespaces).len() == 1);
        assert_eq!(store.cells::<Until>("kept").step(b"key", |cell, _| cell.0), 10);
        time.store(10, std::sync::atomic::Ordering::Relaxed);
        eventually("a namespace whose state has expired is freed", || lock(&store.namespaces).is_empty());
    }

    #[test]
    fn families_of_one_name_share_their_cells() {
        let store = InMemory::new(Clock::system());
        assert!(Arc::ptr_eq(&store.cells::<Until>("a"), &store.cells::<Until>("a")));
        assert!(!Arc::ptr_eq(&store.cells::<Until>("a"), &store.cells::<Until>("b")));
    }
}
