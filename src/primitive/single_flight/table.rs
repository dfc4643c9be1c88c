//! The flights of one process: who runs for a key, and who waits for what comes of it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::local_cache::forgotten;
use crate::store::{Listener, lock};
use crate::{Error, Key};

const SHARDS: usize = 16;

/// The flights under way, by key.
pub(super) struct Table<V> {
    namespace: Box<str>,
    next: AtomicU64,
    /// Whether a run goes on when nobody waits for it any more.
    goes_on: bool,
    hasher: RandomState,
    shards: Box<[Shard<V>]>,
}

type Shard<V> = Mutex<HashMap<Key, Entry<V>>>;

struct Entry<V> {
    /// Which flight this is: of those of one key, one after the other.
    id: u64,
    waiters: VecDeque<oneshot::Sender<Heard<V>>>,
    /// How many callers there are: those who wait, and whose work is run.
    callers: usize,
    /// Which run this is: of those of one flight, one after the other.
    run: u64,
    /// What runs, until its work is done.
    task: Option<AbortHandle>,
    /// What callers get while a fresh answer is made.
    stale: Option<V>,
}

/// What one who waits hears.
pub(super) enum Heard<V> {
    /// What came of it.
    Landed(Result<V, Error>),
    /// It is to run itself; the others wait for it.
    Lead(Baton<V>),
}

/// How a caller takes part.
pub(super) enum Part<V> {
    Lead(Baton<V>, Caller<V>),
    Wait(oneshot::Receiver<Heard<V>>, Caller<V>),
    /// There is an answer already.
    Served(V),
}

impl<V: Clone> Table<V> {
    pub(super) fn new(namespace: &str, goes_on: bool) -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Arc::new(Self {
            namespace: namespace.into(),
            next: AtomicU64::new(0),
            goes_on,
            hasher: RandomState::new(),
            shards,
        })
    }

    /// Takes part in the flight of a key, and begins one where there is none.
    pub(super) fn join(self: &Arc<Self>, key: &Key) -> Part<V> {
        let mut entries = lock(self.shard(key));
        if let Some(entry) = entries.get_mut(key) {
            if let Some(stale) = &entry.stale {
                return Part::Served(stale.clone());
            }
            let (sender, receiver) = oneshot::channel();
            entry.callers += 1;
            entry.waiters.push_back(sender);
            return Part::Wait(receiver, self.caller(key, entry.id));
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { id, waiters: VecDeque::new(), callers: 1, run: 0, task: None, stale: None };
        entries.insert(key.clone(), entry);
        Part::Lead(Baton { table: Arc::clone(self), key: key.clone(), id, run: 0 }, self.caller(key, id))
    }
}

impl<V> Table<V> {
    fn shard(&self, key: &Key) -> &Shard<V> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    fn caller(self: &Arc<Self>, key: &Key, id: u64) -> Caller<V> {
        Caller { table: Arc::clone(self), key: key.clone(), id }
    }

    /// Does something with a flight, if it is still under way.
    fn with<R>(&self, key: &Key, id: u64, step: impl FnOnce(&mut Entry<V>) -> R) -> Option<R> {
        lock(self.shard(key)).get_mut(key).filter(|entry| entry.id == id).map(step)
    }

    fn remove(&self, key: &Key, id: u64) -> Option<Entry<V>> {
        let mut entries = lock(self.shard(key));
        entries.get(key).filter(|entry| entry.id == id)?;
        entries.remove(key)
    }
}

impl<V> Entry<V> {
    /// What has run so far is not to be aborted any more.
    fn next_run(&mut self) -> u64 {
        self.task = None;
        self.run += 1;
        self.run
    }
}

/// The lead of a flight within the process. If it is dropped before the flight has [landed](Self::land), the next who
/// waits leads.
pub(super) struct Baton<V> {
    table: Arc<Table<V>>,
    key: Key,
    id: u64,
    run: u64,
}

impl<V: Clone> Baton<V> {
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// Says that the work is done. What is left to do is done also where all callers are content and go away.
    pub(super) fn done(&self) {
        self.table.with(&self.key, self.id, Entry::next_run);
    }

    /// Ends the flight: all who wait get this.
    pub(super) fn land(&self, outcome: Result<&V, &Error>) {
        let Some(entry) = self.table.remove(&self.key, self.id) else { return };
        for waiter in entry.waiters {
            // Who has gone away needs nothing.
            let _ = waiter.send(Heard::Landed(outcome.cloned().map_err(Error::clone)));
        }
    }

    /// Gives all who wait, and all who come until the flight has ended, an answer that is stale.
    pub(super) fn serve(&self, stale: V) {
        let waiters = self.table.with(&self.key, self.id, |entry| {
            entry.stale = Some(stale.clone());
            std::mem::take(&mut entry.waiters)
        });
        for waiter in waiters.into_iter().flatten() {
            let _ = waiter.send(Heard::Landed(Ok(stale.clone())));
        }
    }
}

impl<V> Drop for Baton<V> {
    fn drop(&mut self) {
        loop {
            let mut entries = lock(self.table.shard(&self.key));
            let Some(entry) = entries.get_mut(&self.key).filter(|entry| entry.id == self.id) else { return };
            entry.stale = None;
            let run = entry.next_run();
            let next = loop {
                match entry.waiters.pop_front() {
                    Some(waiter) if waiter.is_closed() => {}
                    next => break next,
                }
            };
            let Some(next) = next else {
                entries.remove(&self.key);
                return;
            };
            drop(entries);
            let baton = Self { table: Arc::clone(&self.table), key: self.key.clone(), id: self.id, run };
            match next.send(Heard::Lead(baton)) {
                Ok(()) => return,
                // It has gone away just now: what it was handed is dropped without passing it on from there.
                Err(Heard::Lead(baton)) => baton.forget(),
                Err(Heard::Landed(_)) => return,
            }
        }
    }
}

impl<V> Baton<V> {
    /// Drops it without passing it on.
    fn forget(mut self) {
        // No flight has this number.
        self.id = u64::MAX;
    }
}

/// Counts a caller of a flight while it lives; when the last goes away, the run is aborted.
pub(super) struct Caller<V> {
    table: Arc<Table<V>>,
    key: Key,
    id: u64,
}

impl<V> Caller<V> {
    /// Says what is to be aborted when nobody is left, as long as this run is not over.
    pub(super) fn runs(&self, run: u64, task: AbortHandle) {
        self.table.with(&self.key, self.id, |entry| {
            if entry.run == run {
                entry.task = Some(task);
            }
        });
    }
}

impl<V> Drop for Caller<V> {
    fn drop(&mut self) {
        let goes_on = self.table.goes_on;
        let task = self.table.with(&self.key, self.id, |entry| {
            entry.callers -= 1;
            let gone = entry.callers == 0 && !goes_on && entry.stale.is_none();
            entry.task.take_if(|_| gone)
        });
        if let Some(task) = task.flatten() {
            task.abort();
        }
    }
}

impl<V: Send> Listener for Table<V> {
    /// A stale answer that is forgotten is not served any more: callers wait for the run that is under way.
    fn hear(&self, message: &[u8]) {
        if let Some(key) = forgotten(message, &self.namespace)
            && let Some(entry) = lock(self.shard(&key)).get_mut(&key)
        {
            entry.stale = None;
        }
    }
}

impl<V> fmt::Debug for Table<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}
