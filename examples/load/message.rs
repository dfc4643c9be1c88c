//! What a process of the run tells the first one: a JSON value on each line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Times are in µs since the start of the run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// It is connected, and waits for the start.
    Ready,
    /// It cannot take part.
    Failed(String),
    Progress(Progress),
    /// All of its calls have ended.
    Done(Done),
}

/// What has happened since the last message.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Counts by the place of their bin.
    pub(crate) bins: BTreeMap<usize, Counts>,
    pub(crate) notes: Vec<Note>,
}

/// The length of a bin, in µs.
pub(crate) const BIN: u64 = 100_000;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    pub(crate) errors: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.refused += other.refused;
        self.errors += other.errors;
    }

    pub(crate) fn all(self) -> u64 {
        self.admitted + self.refused + self.errors
    }
}

/// What the checks need to know. `from` and `to` are rounded so that no check finds a breach where there is none.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// A call was admitted between `from` and `to`.
    #[serde(rename = "a")]
    Admitted { key: u64, from: u64, to: u64 },
    /// A lease was held at least from `from` to `to`, or an origin ran.
    #[serde(rename = "h")]
    Held(Held),
    /// An item passed and was confirmed.
    #[serde(rename = "p")]
    Passed(u64),
    /// An item was reported as a duplicate.
    #[serde(rename = "d")]
    Duplicate(u64),
    /// Whether an item passed is not known: a claim was lost, or a call failed.
    #[serde(rename = "u")]
    Unknown(u64),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) key: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Whether others may hold leases of the same key.
    pub(crate) shared: bool,
    /// 0 if there is none.
    pub(crate) fence: u64,
}

/// What is told once, at the end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Latencies in µs, with how often each was seen.
    pub(crate) latencies: Vec<(u64, u64)>,
    /// Statuses and outcomes.
    pub(crate) answers: BTreeMap<String, u64>,
    /// Texts of errors.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Calls of the schedule that no task was free for before the end.
    pub(crate) not_started: u64,
    /// Leases that were lost while they were held.
    pub(crate) lost: u64,
}
