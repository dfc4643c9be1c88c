//! Those who wait in this process, by the ids in their tokens; and the lines that they stand in.

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

/// How long others wait for somebody's future to be polled by which their line asks.
const UNPOLLED: Duration = Duration::from_millis(500);

/// Who waits.
pub(super) struct Table<F> {
    entries: HashMap<u64, Entry<F>>,
    /// Which entry those who come for a key join: of kinds with cohorts.
    lines: HashMap<Key, u64>,
}

/// What one token is for: what it asks for is for the first in its line.
pub(super) struct Entry<F> {
    pub(super) key: Key,
    pub(super) token: Arc<str>,
    /// Under whose options it asks.
    pub(super) holding: Arc<Holding>,
    pub(super) stage: Stage,
    pub(super) line: Line<Arc<Seat<F>>>,
    /// Whether others may join the line.
    pub(super) cohort: bool,
    /// Whose future asks, while it does.
    pub(super) driver: Option<Arc<Seat<F>>>,
    /// Until when its call is answered or given up, where it is looked at earlier whether that future is polled.
    pub(super) nudged: Option<Instant>,
    /// What it holds.
    pub(super) tenure: Option<Arc<Tenure>>,
    /// When it is looked at next; `None` while that is under way.
    pub(super) due: Option<Instant>,
    /// What came before the answer.
    pub(super) early: Option<News>,
    /// Whether its acquire was sent twice, so that one may come after the release.
    pub(super) twice: bool,
    /// Whether its place is gone, while what those in the queue were told may be on its way.
    pub(super) gone: bool,
    /// Why the store gave no answer, when it was last asked.
    pub(super) outage: Option<Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It was sent, and not answered.
    Asking,
    /// It has a place in the queue; the call by whose answer that is known.
    Queued(Anchor),
    /// It holds, and so does this process for those in its line.
    Holding,
}

type Joined<F> = (Option<Instant>, Option<Arc<Seat<F>>>);

/// What is left to do when somebody has gone away.
pub(super) enum Left {
    Nothing,
    /// Nobody needs what the token asks for any more.
    GiveBack(GiveBack),
    /// Nobody sees to the call any more by which the line asked: it is to ask by another token.
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

    /// Lets somebody join those who wait for a key; `None`: nobody does, nor holds here. When they are to be looked at, and
    /// who is to be nudged before.
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

    /// Takes one who waits out of its line; what is left to do then.
    pub(super) fn leave(&mut self, key: &Key, id: Option<u64>, seat: &Arc<Seat<F>>) -> Left {
        // Whose own entry is gone stands in the line that it joined.
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
    /// Looks after what is held here, on behalf of those in line: its holder may keep it when it is over.
    pub(super) fn watch(&mut self) {
        if let Some(tenure) = &self.tenure
            && !self.line.is_empty()
        {
            self.due = Some(tenure.until());
        }
    }

    /// What it gives back that waits. `asking`: the store may get to know of it after that.
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
