//! The waiters of this process by the ids in their tokens, and the lines that they form.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::belief::Anchor;
use super::line::Line;
use super::options::{Holding, micros};
use super::releases::{ALIVE, GiveBack};
use super::seat::Seat;
use super::state::Tenure;
use crate::store::News;
use crate::{Error, Key};

/// How long a line waits for the future that sends its call to be polled.
const UNPOLLED: Duration = Duration::from_millis(500);

/// The waiters of this process.
pub(super) struct Table<F> {
    entries: HashMap<u64, Entry<F>>,
    /// The entry that new waiters for a key join, for kinds with cohorts.
    lines: HashMap<Key, u64>,
}

/// The state of one token. The lease that it gets is for the first waiter in its line.
pub(super) struct Entry<F> {
    pub(super) key: Key,
    pub(super) token: Arc<str>,
    /// The options that it acquires with.
    pub(super) holding: Arc<Holding>,
    pub(super) stage: Stage,
    pub(super) line: Line<Arc<Seat<F>>>,
    /// Whether other waiters may join the line.
    pub(super) cohort: bool,
    /// The waiter whose future sends the call, until it is answered.
    pub(super) driver: Option<Arc<Seat<F>>>,
    /// The time limit of its call, if `due` is an earlier check of whether that future is polled.
    pub(super) nudged: Option<Instant>,
    /// The lease that it holds.
    pub(super) tenure: Option<Arc<Tenure>>,
    /// When it is checked next; `None` while a check is under way.
    pub(super) due: Option<Instant>,
    /// A message that arrived before the answer.
    pub(super) early: Option<News>,
    /// Whether its acquire was sent twice. Then one copy may run after the release.
    pub(super) twice: bool,
    /// Whether its place is gone, while the message with the outcome may still be on its way.
    pub(super) gone: bool,
    /// The error of its last call, if the store was unavailable.
    pub(super) outage: Option<Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The acquire was sent, and not answered yet.
    Asking,
    /// It has a place in the queue. The anchor is the call whose answer said so last.
    Queued(Anchor),
    /// It holds the lease, for the waiters in its line.
    Holding,
}

type Joined<F> = (Option<Instant>, Option<Arc<Seat<F>>>);

/// What to do after a waiter has gone away.
pub(super) enum Left {
    Nothing,
    /// The token has no waiters left: release it.
    GiveBack(GiveBack),
    /// The waiter whose future sent the line's call is gone: release the token, and let the line ask with another
    /// one.
    Abandoned(u64, GiveBack),
}

impl<F> Table<F> {
    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), lines: HashMap::new() }
    }

    pub(super) fn insert(&mut self, id: u64, entry: Entry<F>) {
        if entry.cohort {
            self.lines.insert(entry.key.clone(), id);
        }
        self.entries.insert(id, entry);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Entry<F>> {
        let entry = self.entries.remove(&id)?;
        if entry.cohort && self.lines.get(&entry.key) == Some(&id) {
            self.lines.remove(&entry.key);
        }
        Some(entry)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Entry<F>> {
        self.entries.get_mut(&id)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Entry<F>)> {
        self.entries.iter_mut().map(|(id, entry)| (*id, entry))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Entry<F>> {
        self.entries.values()
    }

    /// Adds a waiter to the line for a key. Returns `None` if there is no line. Else returns when the entry is due,
    /// and the waiter to nudge before that.
    pub(super) fn join(&mut self, key: &Key, seat: &Arc<Seat<F>>, now: Instant) -> Option<Joined<F>> {
        let entry = self.entries.get_mut(self.lines.get(key)?)?;
        entry.line.join(Arc::clone(seat));
        entry.watch();
        let driver = entry.driver.clone().filter(|_| entry.nudged.is_none());
        if driver.is_some() {
            entry.nudged = entry.due;
            entry.due = entry.due.map(|due| due.min(now + UNPOLLED));
        }
        Some((entry.due, driver))
    }

    /// Removes a waiter from its line. Returns what to do then.
    pub(super) fn leave(&mut self, key: &Key, id: Option<u64>, seat: &Arc<Seat<F>>) -> Left {
        // A waiter that has no entry is in the line that it joined.
        let own = id.filter(|id| self.entries.contains_key(id));
        let Some(id) = own.or_else(|| self.lines.get(key).copied()) else { return Left::Nothing };
        let Some(entry) = self.entries.get_mut(&id) else { return Left::Nothing };
        entry.line.leave(|other| Arc::ptr_eq(other, seat));
        let asking = match entry.stage {
            Stage::Holding => return Left::Nothing,
            Stage::Queued(_) => false,
            Stage::Asking => true,
        };
        if entry.line.is_empty() {
            let back = entry.give_back(asking);
            self.remove(id);
            return Left::GiveBack(back);
        }
        match asking && entry.driver.as_ref().is_some_and(|driver| Arc::ptr_eq(driver, seat)) {
            true => Left::Abandoned(id, entry.give_back(true)),
            false => Left::Nothing,
        }
    }
}

impl<F> Entry<F> {
    /// Makes the entry due when its lease ends, if there are waiters in its line: the holder may keep the lease
    /// after its end.
    pub(super) fn watch(&mut self) {
        if let Some(tenure) = &self.tenure
            && !self.line.is_empty()
        {
            self.due = Some(tenure.until());
        }
    }

    /// Returns what to release for this entry. `asking`: the acquire may reach the store after the release.
    pub(super) fn give_back(&self, asking: bool) -> GiveBack {
        let ttl = self.holding.options.ttl;
        GiveBack {
            key: self.key.clone(),
            token: Arc::clone(&self.token),
            withdrawn: asking || self.twice,
            ttl: micros(ttl),
            left: ttl + ALIVE,
        }
    }
}
