//! What a replica of a server has to take over, in order.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;

use super::database::{Database, Entry};
use super::reply::Bytes;

/// The keys that one request has changed, as they are after it.
pub type Change = Vec<(Bytes, Option<Entry>)>;

#[derive(Default)]
pub struct Log {
    changes: VecDeque<Change>,
    /// The number of changes that the replica has.
    taken: u64,
    /// Whether there is a replica.
    pub is_kept: bool,
    /// Is told when there is something that the replica does not have yet.
    pub changed: Arc<Notify>,
}

impl Log {
    /// The number of changes so far.
    pub fn end(&self) -> u64 {
        self.taken + self.changes.len() as u64
    }

    /// The number of changes that the replica has.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether there is something that the replica does not have yet.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    pub fn note(&mut self, database: &Database, changed: BTreeSet<Bytes>) {
        if !self.is_kept {
            self.taken += 1;
            return;
        }
        let after = |key: Bytes| {
            let entry = database.entries.get(&key).cloned();
            (key, entry)
        };
        self.changes.push_back(changed.into_iter().map(after).collect());
        self.changed.notify_one();
    }

    /// What the replica does not have yet.
    pub fn take(&mut self) -> VecDeque<Change> {
        self.taken = self.end();
        std::mem::take(&mut self.changes)
    }
}

/// Takes over changes of another server.
pub fn apply(database: &mut Database, changes: impl IntoIterator<Item = Change>) {
    for (key, entry) in changes.into_iter().flatten() {
        match entry {
            Some(entry) => drop(database.entries.insert(key, entry)),
            None => drop(database.entries.remove(&key)),
        }
    }
}
