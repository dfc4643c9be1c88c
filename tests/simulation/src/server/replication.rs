//! What a replica of a server has to take over, in order.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;

use super::database::{Database, Entry};
use super::functions::Texts;
use super::reply::Bytes;
use super::{Server, lock};

/// What one request has changed, as it is after it.
pub enum Change {
    Keys(Vec<(Bytes, Option<Entry>)>),
    /// All libraries.
    Libraries(Texts),
}

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
        let after = |key: Bytes| {
            let entry = database.entries.get(&key).cloned();
            (key, entry)
        };
        self.add(|| Change::Keys(changed.into_iter().map(after).collect()));
    }

    pub fn note_libraries(&mut self, texts: Texts) {
        self.add(|| Change::Libraries(texts));
    }

    fn add(&mut self, change: impl FnOnce() -> Change) {
        if !self.is_kept {
            self.taken += 1;
            return;
        }
        self.changes.push_back(change());
        self.changed.notify_one();
    }

    /// What the replica does not have yet.
    pub fn take(&mut self) -> VecDeque<Change> {
        self.taken = self.end();
        std::mem::take(&mut self.changes)
    }
}

/// Takes over changes of another server.
pub fn apply(server: &mut Server, changes: impl IntoIterator<Item = Change>) {
    for change in changes {
        match change {
            Change::Keys(keys) => {
                let entries = &mut lock(&server.database).entries;
                for (key, entry) in keys {
                    match entry {
                        Some(entry) => drop(entries.insert(key, entry)),
                        None => drop(entries.remove(&key)),
                    }
                }
            }
            Change::Libraries(texts) => server.take_over(&texts),
        }
    }
}
