//! The flights of one process: for each key, the caller that leads and the callers that wait for its outcome.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use hashbrown::hash_table::Entry::{Occupied, Vacant};
use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::single_flight::cache::forgotten;
use crate::single_flight::task::{ALONE, Run};
use crate::store::background::Background;
use crate::store::notifier::Listener;
use crate::store::timer::sleep;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};

const SHARDS: usize = 16;

/// The current flights, by key.
pub(super) struct Table<V> {
    namespace: Box<str>,
    /// Whether a run continues when its last caller is dropped.
    goes_on: bool,
    hasher: DefaultHashBuilder,
    shards: Box<[Shard<V>]>,
    /// Whether a background task checks the runs.
    is_watched: AtomicBool,
}

type Shard<V> = Mutex<HashTable<Entry<V>>>;

/// Identifies a flight. A key has at most one flight at a time.
struct Flight<V> {
    table: Arc<Table<V>>,
    key: Key,
    hash: u64,
}

struct Entry<V> {
    flight: Arc<Flight<V>>,
    waiters: Waiters<V>,
    /// The waiters that came after the answer was removed: an answer that the leader read before is not sent to them.
    later: Waiters<V>,
    /// Whether the answer was removed after the leader started to look for one.
    is_forgotten: bool,
    /// The number of callers: the waiters, and the caller whose work runs.
    callers: usize,
    /// The number of the current run. A flight has one run at a time.
    run: u64,
    /// The run, until its work is done. It is aborted when its last caller is dropped.
    current: Option<Arc<Run>>,
    /// The stale answer for callers while a fresh one is computed, and when it expires.
    stale: Option<(V, Instant)>,
}

pub(super) type Waiters<V> = VecDeque<oneshot::Sender<Wakeup<V>>>;

/// The message to a waiter.
pub(super) enum Wakeup<V> {
    /// The outcome of the run.
    Outcome(Result<V, Error>),
    /// The waiter leads now.
    Lead(LeaderGuard<V>),
}

/// The role of a caller in a flight.
pub(super) enum Role<V> {
    Leader(LeaderGuard<V>, Caller<V>),
    Follower(oneshot::Receiver<Wakeup<V>>, Caller<V>),
    /// The caller gets an answer at once.
    Served(V),
}

impl<V: Clone> Table<V> {
    pub(super) fn new(namespace: &str, goes_on: bool) -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let hasher = DefaultHashBuilder::default();
        let is_watched = AtomicBool::new(false);
        Arc::new(Self {
            namespace: namespace.into(),
            goes_on,
            hasher,
            shards,
            is_watched,
        })
    }

    /// Joins the flight of a key, or begins one.
    pub(super) fn join(self: &Arc<Self>, key: &Key) -> Role<V> {
        let hash = self.hasher.hash_one(key);
        let mut entries = lock(self.shard(hash));
        match entries.entry(
            hash,
            |entry| entry.flight.key == *key,
            |entry| entry.flight.hash,
        ) {
            Occupied(mut entry) => {
                let entry = entry.get_mut();
                if let Some((stale, until)) = &entry.stale
                    && clock::now() < *until
                {
                    return Role::Served(stale.clone());
                }
                let (sender, receiver) = oneshot::channel();
                entry.callers += 1;
                match entry.is_forgotten {
                    true => entry.later.push_back(sender),
                    false => entry.waiters.push_back(sender),
                }
                let caller = Caller(Arc::clone(&entry.flight));
                let current = entry.current.clone();
                drop(entries);
                // The new waiter does not depend on another caller's future.
                current.into_iter().for_each(|run| run.spawn());
                Role::Follower(receiver, caller)
            }
            Vacant(place) => {
                let flight = Arc::new(Flight {
                    table: Arc::clone(self),
                    key: key.clone(),
                    hash,
                });
                let caller = Caller(Arc::clone(&flight));
                let guard = LeaderGuard {
                    flight: Arc::clone(&flight),
                    run: 0,
                    leads: true,
                };
                place.insert(Entry::new(flight));
                Role::Leader(guard, caller)
            }
        }
    }
}

impl<V: Send + 'static> Table<V> {
    /// Checks the runs regularly, until there are none.
    pub(super) fn watch(self: &Arc<Self>, background: &Background) {
        if self.is_watched.swap(true, Ordering::SeqCst) {
            return;
        }
        let watch = Watch {
            table: Arc::clone(self),
            ended: false,
        };
        background.spawn(watch.go());
    }
}

/// The task that checks the runs. If it is dropped, the next run starts a new one.
struct Watch<V> {
    table: Arc<Table<V>>,
    ended: bool,
}

impl<V> Watch<V> {
    async fn go(mut self) {
        let table = Arc::clone(&self.table);
        loop {
            sleep(ALONE).await;
            let runs = table.runs();
            runs.iter().for_each(|run| run.look());
            if runs.is_empty() {
                table.is_watched.store(false, Ordering::SeqCst);
                // A run that began before this point found a running task.
                self.ended =
                    table.runs().is_empty() || table.is_watched.swap(true, Ordering::SeqCst);
                if self.ended {
                    return;
                }
            }
        }
    }
}

impl<V> Drop for Watch<V> {
    fn drop(&mut self) {
        if !self.ended {
            self.table.is_watched.store(false, Ordering::SeqCst);
        }
    }
}

impl<V> Table<V> {
    fn runs(&self) -> Vec<Arc<Run>> {
        let of_shard = |shard: &Shard<V>| {
            let entries = lock(shard);
            entries
                .iter()
                .filter_map(|entry| entry.current.clone())
                .collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    fn shard(&self, hash: u64) -> &Shard<V> {
        // The shard's table uses the other bits of the hash.
        &self.shards[(hash >> 51) as usize % SHARDS]
    }
}

impl<V> Flight<V> {
    fn shard(&self) -> &Shard<V> {
        self.table.shard(self.hash)
    }

    fn is(&self, entry: &Entry<V>) -> bool {
        std::ptr::eq(self, &*entry.flight)
    }

    /// Calls `step` with the flight's entry, if the flight has not ended.
    fn with<R>(&self, step: impl FnOnce(&mut Entry<V>) -> R) -> Option<R> {
        lock(self.shard())
            .find_mut(self.hash, |entry| self.is(entry))
            .map(step)
    }

    fn end(&self) -> Option<Entry<V>> {
        let mut entries = lock(self.shard());
        entries
            .find_entry(self.hash, |entry| self.is(entry))
            .ok()
            .map(|entry| entry.remove().0)
    }

    /// Returns the waiters that get the answer that was found. If there are no others, ends the flight; otherwise also
    /// returns `true`.
    fn found(&self) -> Option<(Waiters<V>, bool)> {
        let mut entries = lock(self.shard());
        let mut found = entries.find_entry(self.hash, |entry| self.is(entry)).ok()?;
        let entry = found.get_mut();
        if entry.later.is_empty() {
            return Some((found.remove().0.waiters, false));
        }
        let waiters = std::mem::take(&mut entry.waiters);
        entry.looks_anew();
        Some((waiters, true))
    }

    /// Ends a run and returns the waiter that leads next. If no caller waits, ends the flight.
    fn next_run(&self) -> Option<(u64, oneshot::Sender<Wakeup<V>>)> {
        let mut entries = lock(self.shard());
        let mut found = entries.find_entry(self.hash, |entry| self.is(entry)).ok()?;
        let entry = found.get_mut();
        entry.stale = None;
        let run = entry.next_run();
        entry.looks_anew();
        let next =
            std::iter::from_fn(|| entry.waiters.pop_front()).find(|waiter| !waiter.is_closed());
        if next.is_none() {
            found.remove();
        }
        next.map(|next| (run, next))
    }
}

impl<V> Entry<V> {
    fn new(flight: Arc<Flight<V>>) -> Self {
        let waiters = Waiters::new();
        let later = Waiters::new();
        Self {
            flight,
            waiters,
            later,
            is_forgotten: false,
            callers: 1,
            run: 0,
            current: None,
            stale: None,
        }
    }

    /// An answer that a leader finds from now on is for all waiters.
    fn looks_anew(&mut self) {
        self.is_forgotten = false;
        self.waiters.append(&mut self.later);
    }

    /// Begins the next run. The previous run can no longer be aborted.
    fn next_run(&mut self) -> u64 {
        self.current = None;
        self.run += 1;
        self.run
    }
}

/// The lead of a flight within the process. If it is dropped before the flight has [finished](Self::finish),
/// the next waiter leads.
pub(super) struct LeaderGuard<V> {
    flight: Arc<Flight<V>>,
    run: u64,
    /// Whether dropping this passes the lead on.
    leads: bool,
}

impl<V: Clone> LeaderGuard<V> {
    pub(super) fn key(&self) -> &Key {
        &self.flight.key
    }

    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// Marks the work as done. From now on the run is not aborted, even if all callers are dropped.
    pub(super) fn work_done(&self) {
        self.flight.with(Entry::next_run);
    }

    /// Ends the flight, and returns all waiters.
    pub(super) fn end(&mut self) -> Waiters<V> {
        self.leads = false;
        let Some(Entry {
            mut waiters,
            mut later,
            ..
        }) = self.flight.end()
        else {
            return Waiters::new();
        };
        waiters.append(&mut later);
        waiters
    }

    /// Ends the flight: all waiters get `outcome`.
    pub(super) fn finish(&mut self, outcome: Result<&V, &Error>) {
        send_all(self.end(), outcome);
    }

    /// Ends the flight with an answer that was found. Waiters that came after the answer was removed do not get it: one
    /// of them leads.
    pub(super) fn found(mut self, outcome: &V) {
        let (waiters, leads) = self.flight.found().unwrap_or_default();
        self.leads = leads;
        send_all(waiters, Ok(outcome));
    }

    /// Sends an existing answer to all waiters. Callers that come before `until`, by the [clock] that includes suspend,
    /// and before the flight ends, get it too, unless it was removed.
    pub(super) fn serve(&self, stale: V, until: Option<Instant>) {
        let waiters = self.flight.with(|entry| {
            entry.stale = until
                .filter(|_| !entry.is_forgotten)
                .map(|until| (stale.clone(), until));
            std::mem::take(&mut entry.waiters)
        });
        send_all(waiters.unwrap_or_default(), Ok(&stale));
    }
}

pub(super) fn send_all<V: Clone>(waiters: Waiters<V>, outcome: Result<&V, &Error>) {
    for waiter in waiters {
        // The waiter may have been dropped.
        let _ = waiter.send(Wakeup::Outcome(outcome.cloned().map_err(Error::clone)));
    }
}

impl<V> Drop for LeaderGuard<V> {
    fn drop(&mut self) {
        while self.leads
            && let Some((run, next)) = self.flight.next_run()
        {
            let guard = Self {
                flight: Arc::clone(&self.flight),
                run,
                leads: true,
            };
            match next.send(Wakeup::Lead(guard)) {
                // The waiter was just dropped. Its guard must not pass the lead on, because this loop does.
                Err(Wakeup::Lead(mut guard)) => guard.leads = false,
                Ok(()) | Err(Wakeup::Outcome(_)) => return,
            }
        }
    }
}

/// Counts a caller of a flight. When the last caller is dropped, the run is aborted.
pub(super) struct Caller<V>(Arc<Flight<V>>);

impl<V> Caller<V> {
    /// Sets the run to abort when the last caller is dropped, unless it has ended.
    pub(super) fn runs(&self, number: u64, run: &Arc<Run>) {
        let others = self.0.with(|entry| {
            if entry.run == number {
                entry.current = Some(Arc::clone(run));
            }
            !entry.waiters.is_empty() || !entry.later.is_empty()
        });
        if others == Some(true) {
            run.spawn();
        }
    }
}

impl<V> Drop for Caller<V> {
    fn drop(&mut self) {
        let goes_on = self.0.table.goes_on;
        let run = self.0.with(|entry| {
            entry.callers -= 1;
            let gone = entry.callers == 0 && !goes_on && entry.stale.is_none();
            entry.current.take_if(|_| gone)
        });
        if let Some(run) = run.flatten() {
            run.abort();
        }
    }
}

impl<V: Send> Listener for Table<V> {
    /// Stops serving a stale answer that was removed: callers wait for the current run. An answer that the run finds in
    /// the store may be the removed one.
    fn hear(&self, message: &[u8]) {
        let Some(key) = forgotten(message, &self.namespace) else {
            return;
        };
        let hash = self.hasher.hash_one(&key);
        if let Some(entry) = lock(self.shard(hash)).find_mut(hash, |entry| entry.flight.key == key)
        {
            entry.stale = None;
            entry.is_forgotten = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_there_is_is_served_to_its_end() {
        let (table, key, second) = (
            Table::new("x", false),
            Key::from("k"),
            Duration::from_secs(1),
        );
        let Role::Leader(mut guard, _caller) = table.join(&key) else {
            panic!("no caller leads")
        };
        let Role::Follower(mut waits, _waiter) = table.join(&key) else {
            panic!("two callers lead")
        };
        guard.serve(1, clock::now().checked_add(second));
        assert!(matches!(waits.try_recv(), Ok(Wakeup::Outcome(Ok(1)))));
        tokio::time::advance(second - Duration::from_nanos(1)).await;
        assert!(matches!(table.join(&key), Role::Served(1)));
        tokio::time::advance(Duration::from_nanos(1)).await;
        let Role::Follower(mut waits, _waiter) = table.join(&key) else {
            panic!("the answer has expired")
        };
        guard.finish(Ok(&2));
        assert!(matches!(waits.try_recv(), Ok(Wakeup::Outcome(Ok(2)))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stale_answer_that_was_forgotten_is_not_served() {
        let (table, key, second) = (
            Table::new("x", false),
            Key::from("k"),
            Duration::from_secs(1),
        );
        let Role::Leader(mut guard, _caller) = table.join(&key) else {
            panic!("no caller leads")
        };
        let Role::Follower(mut early, _early) = table.join(&key) else {
            panic!("two callers lead")
        };
        table.hear(&crate::single_flight::cache::message("x", &key));
        let Role::Follower(mut late, _late) = table.join(&key) else {
            panic!("two callers lead")
        };
        guard.serve(1, clock::now().checked_add(second));
        assert!(matches!(early.try_recv(), Ok(Wakeup::Outcome(Ok(1)))));
        assert!(late.try_recv().is_err());
        let Role::Follower(mut later, _later) = table.join(&key) else {
            panic!("it was forgotten")
        };
        guard.finish(Ok(&2));
        for waits in [&mut late, &mut later] {
            assert!(matches!(waits.try_recv(), Ok(Wakeup::Outcome(Ok(2)))));
        }
    }
}
