//! Stores the limits that an upstream reports: the Rust counterpart of `lua/learn.lua`.

use std::sync::Arc;

use crate::bucket::wire::WRONG_TYPE;
use crate::store::operation::{
    Arguments, Cell, Field, Fields, Garbled, Operation, Repeat, Script, function,
};

/// Stores quotas, and grants a correction of a level. Returns the stored quotas.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Learn {
    /// When the request with this response was charged, µs, by the clock of the store.
    pub(crate) order: i64,
    /// The quotas as text; empty: none were reported.
    pub(crate) quotas: Arc<str>,
    /// Whether a level is above the one that the upstream reported.
    pub(crate) corrects: bool,
}

/// The state after a [`Learn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    /// Empty: no quotas.
    pub(crate) quotas: Arc<str>,
    /// Whether the caller may correct the level.
    pub(crate) corrects: bool,
}

/// How long quotas are stored after the last use, µs.
const REMEMBERED: i64 = 7 * 86_400_000_000;

/// After a correction was granted, responses to requests that were charged within this time, µs, do not correct the
/// level again: the first correction may not have arrived when they were charged.
const SETTLING: i64 = 100_000;

/// The stored state of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The order of the response that the quotas are from.
    order: i64,
    /// Only responses with a higher order correct a level.
    corrected: i64,
    quotas: Arc<str>,
    /// When the state expires.
    end: i64,
}

impl Cell for Memory {
    fn is_idle(&self, now: i64) -> bool {
        self.end <= now
    }

    fn heap_bytes(&self) -> usize {
        self.quotas.len()
    }
}

impl Learn {
    /// Only reads the stored state.
    pub(crate) fn read() -> Self {
        Self {
            order: 0,
            quotas: Arc::default(),
            corrects: false,
        }
    }
}

impl Operation for Learn {
    type Cell = Memory;
    type Reply = Remembered;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "learn"; &["learn"]);
    const PARTS: &'static [&'static str] = &["learned"];
    // A second copy stores the same quotas. It is not granted a correction, which the next response compensates for.
    const REPEAT: Repeat = Repeat::Safe;

    fn payload(&self) -> usize {
        self.quotas.len()
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(self.order);
        call.text(Arc::clone(&self.quotas));
        call.integer(self.corrects.into());
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Remembered, Garbled> {
        let corrects = match fields.integer()? {
            ..0 => return Err(WRONG_TYPE),
            corrects => corrects == 1,
        };
        let Field::Text(quotas) = fields.next()? else {
            return Err(Garbled("a script returned no text"));
        };
        // Text that is not UTF-8 was forged, and is not a quota.
        let quotas = std::str::from_utf8(quotas).unwrap_or_default().into();
        Ok(Remembered { quotas, corrects })
    }

    fn apply(self, memory: &mut Memory, now: i64) -> Remembered {
        if memory.is_idle(now) {
            *memory = Memory::default();
        }
        // The clock may have been set back.
        let order = self.order.min(now);
        memory.order = memory.order.min(now);
        memory.corrected = memory.corrected.min(now + SETTLING);
        if !self.quotas.is_empty() && order > memory.order {
            (memory.order, memory.quotas) = (order, self.quotas);
        }
        let corrects = self.corrects && order > memory.corrected;
        if corrects {
            memory.corrected = now + SETTLING;
        }
        if memory.order > 0 || memory.corrected > 0 {
            memory.end = now + REMEMBERED;
        }
        Remembered {
            quotas: Arc::clone(&memory.quotas),
            corrects,
        }
    }
}
