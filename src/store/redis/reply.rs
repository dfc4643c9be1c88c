//! The reply of a script.

use std::ops::Range;

use redis::Value;

use crate::Error;
use crate::store::operation::Fields;

/// The server's time, then the fields of the runs: the same number for each run, in the order of the call.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) now: i64,
    values: Vec<Value>,
    width: usize,
    /// Whether the call was sent twice. The other copy may still run later.
    twice: bool,
    /// Why the call does not count, although it has run: too few replicas have it.
    pub(super) unconfirmed: Option<Error>,
}

impl Reply {
    /// Parses the reply to a call of `runs` runs.
    pub(super) fn parse(reply: Value, runs: usize) -> Option<Self> {
        let Value::Array(values) = reply else { return None };
        let Some(Value::Int(now)) = values.first() else { return None };
        Some(Self {
            now: *now,
            width: (values.len() - 1) / runs.max(1),
            values,
            twice: false,
            unconfirmed: None,
        })
    }

    /// Marks the reply as one to a call that was sent twice.
    pub(super) fn sent_twice(self) -> Self {
        Self { twice: true, ..self }
    }

    /// The fields of these runs.
    pub(super) fn fields(&self, runs: Range<usize>) -> Fields<'_> {
        let range = 1 + runs.start * self.width..1 + runs.end * self.width;
        Fields::new(self.values.get(range).unwrap_or_default(), self.twice)
    }
}
