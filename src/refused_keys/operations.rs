//! The operations on the list of a process: storing and reading it.

use std::sync::Arc;

use crate::error::Error;
use crate::error::reasons::Cause;
use crate::key::Key;
use crate::refused_keys::list::{List, MOST_BYTES};
use crate::store::client::Namespace;
use crate::store::operation::{
    Arguments, Cell, Field, Fields, Garbled, Operation, Repeat, Script, function,
};

/// The stored list of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    list: Arc<str>,
    ends: i64,
}

impl Cell for Stored {
    fn is_idle(&self, now: i64) -> bool {
        now >= self.ends
    }

    fn heap_bytes(&self) -> usize {
        self.list.len()
    }
}

/// Stores a list.
#[derive(Debug)]
pub(super) struct Put {
    list: Arc<str>,
    ttl_ms: i64,
}

impl Put {
    pub(super) fn new(list: &List, ttl_ms: i64) -> Self {
        Self {
            list: list.text().into(),
            ttl_ms,
        }
    }

    #[cfg(test)]
    pub(super) fn of(list: &Arc<str>, ttl_ms: i64) -> Self {
        Self {
            list: Arc::clone(list),
            ttl_ms,
        }
    }
}

impl Operation for Put {
    type Cell = Stored;
    type Reply = ();
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "note_refused"; &["fleet"]);
    const PARTS: &'static [&'static str] = &["refused"];
    const REPEAT: Repeat = Repeat::Safe;
    // The last list must be stored last.
    const IN_ORDER: bool = true;

    fn payload(&self) -> usize {
        self.list.len()
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.list));
        call.integer(self.ttl_ms);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<(), Garbled> {
        fields.integer().map(drop)
    }

    fn apply(self, stored: &mut Stored, now: i64) {
        *stored = Stored {
            list: self.list,
            ends: now + self.ttl_ms * 1000,
        };
    }
}

/// Reads a stored list.
#[derive(Debug)]
struct Look;

impl Operation for Look {
    type Cell = Stored;
    type Reply = Arc<[u8]>;
    type Undo = Self;
    const SCRIPT: Script = function!(Reads: "look_at_refused"; &["fleet"]);
    const PARTS: &'static [&'static str] = Put::PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        // A longer list is not recognised.
        call.integer(MOST_BYTES as i64 + 1);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Arc<[u8]>, Garbled> {
        if fields.integer()? < 0 {
            return Err(Garbled(
                "WRONGTYPE the key of refused keys has a value of another type: delete the key",
            ));
        }
        match fields.next()? {
            Field::Text(list) => Ok(list.into()),
            _ => Err(Garbled("a list is not a text")),
        }
    }

    fn apply(self, stored: &mut Stored, now: i64) -> Arc<[u8]> {
        if stored.is_idle(now) {
            Arc::default()
        } else {
            stored.list.as_bytes().into()
        }
    }
}

/// Returns the list of a process; `None` if none is stored.
pub(crate) async fn look(
    namespace: &Namespace<Stored>,
    process: Key,
) -> Result<Option<List>, Error> {
    let stored = namespace.client().run(process, Look).await?;
    if stored.is_empty() {
        return Ok(None);
    }
    let list = Some(&stored)
        .filter(|stored| stored.len() <= MOST_BYTES)
        .and_then(|stored| List::parse(stored));
    let not_recognised = || {
        Error::unavailable(
            Cause::WrongType,
            "the stored list of refused keys has a form that is not recognised",
        )
    };
    list.map(Some).ok_or_else(not_recognised)
}
