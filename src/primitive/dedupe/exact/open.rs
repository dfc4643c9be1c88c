//! Makes sure that all processes use the same layout for a name.

use std::sync::Arc;

use super::layout::{Layout, Mismatch};
use crate::store::{Arguments, Cell, Field, Fields, Garbled, Never, Operation, Repeat, Script, script};

/// Compares the stored layout, or stores it if there is none. It lives longer than the items that use it.
#[derive(Debug)]
pub(super) struct Open(pub(super) Arc<Layout>);

/// The stored layout, and when it expires (µs).
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored(pub(super) Option<(Arc<str>, i64)>);

impl Open {
    /// Returns the time to live of the stored layout, ms.
    fn kept(&self) -> i64 {
        2 * self.0.remember_for().as_millis() as i64 + 3_600_000
    }
}

impl Operation for Open {
    type Cell = Stored;
    type Reply = Result<(), Mismatch>;
    type Undo = Never<Stored>;
    const SCRIPT: Script = script!("dedupe/open");
    const PARTS: &'static [&'static str] = &["layout"];
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(Arc::clone(self.0.descriptor()));
        call.integer(self.kept());
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        match fields.next()? {
            Field::Integer(1) => Ok(Ok(())),
            Field::Text(stored) => Ok(Err(Mismatch(String::from_utf8_lossy(stored).into_owned()))),
            _ => Err(Garbled(
                "WRONGTYPE the key of the layout has a value of another type: delete the key or use another name",
            )),
        }
    }

    fn apply(self, stored: &mut Stored, now: i64) -> Self::Reply {
        if let Some((layout, until)) = &stored.0
            && *until > now
            && layout != self.0.descriptor()
        {
            return Err(Mismatch(layout.to_string()));
        }
        stored.0 = Some((Arc::clone(self.0.descriptor()), now + self.kept() * 1000));
        Ok(())
    }
}

impl Cell for Stored {
    fn is_idle(&self, now: i64) -> bool {
        self.0.as_ref().is_none_or(|(_, until)| *until <= now)
    }
}
