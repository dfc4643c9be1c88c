//! The operation that enters the outcome of a lease, and releases the lease.

use std::sync::Arc;

use super::kind::{Entry, Found, Kind};
use super::operations::{Scene, StateOf, WRONG_TYPE, messages};
use super::outcome::{Entered, Outcome};
use crate::store::{Arguments, Field, Fields, Garbled, Never, Operation, Push, Repeat, Script};

/// Enters the outcome of a lease, releases the lease, and tells the waiters to ask again.
#[derive(Debug)]
pub(crate) struct Complete<K: Kind> {
    pub(crate) scene: Arc<Scene<K>>,
    pub(crate) token: Arc<str>,
    pub(crate) entry: Entry<K>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completed<F> {
    /// Whether the lease was still held, as far as is known if the call was sent twice; a second identical call says
    /// `false`. Or why the outcome was not entered.
    pub(crate) outcome: Result<bool, F>,
    /// How full the filter is now, for kinds that have one.
    pub(crate) level: u64,
    /// The messages to other waiters of this process.
    pub(super) heard: Vec<Push>,
}

impl<K: Kind> Operation for Complete<K> {
    type Cell = StateOf<K>;
    type Reply = Completed<Found<K>>;
    type Undo = Never<StateOf<K>>;
    const SCRIPT: Script = K::SCRIPTS.complete;
    const PARTS: &'static [&'static str] = K::PARTS;
    const REPEAT: Repeat = Repeat::Safe;
    const MOST_RUNS: usize = K::Outcome::MOST_RUNS;
    const SAME_ONCE: bool = false;
    const NOTIFIES: bool = true;
    const BULK: bool = K::Outcome::BULK;
    const RESERVED: bool = true;

    fn payload(&self) -> usize {
        K::Outcome::payload(&self.entry)
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        self.scene.write(call);
        K::Outcome::write_scope(&self.scene.scope, call);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.token));
        K::Outcome::write_entry(&self.entry, call);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let twice = fields.sent_twice();
        let status = fields.integer()?;
        if status < 0 {
            return Err(WRONG_TYPE);
        }
        let level = u64::try_from(fields.integer()?).unwrap_or(0);
        for _ in 0..2 {
            fields.integer()?;
        }
        let last = fields.next()?;
        if let Field::Text(_) = &last {
            return Ok(Completed { outcome: Err(K::Outcome::decode(last)?), level, heard: Vec::new() });
        }
        // The first of two copies has released the lease, unless the lease was lost before: then it may be free too, but
        // nobody else has it.
        let was_held = status == 1 || twice && status == 0;
        Ok(Completed { outcome: Ok(was_held), level, heard: messages(last)? })
    }

    fn apply(self, state: &mut StateOf<K>, now: i64) -> Self::Reply {
        let is_needed = !K::Outcome::needs_waiters(&self.entry) || state.has_queue();
        let mut level = 0;
        let outcome = state.complete(&self.token, now, |holders, holding| {
            if !is_needed {
                return Ok(Entered::Nothing);
            }
            let entered = K::Outcome::enter(holders, &self.scene.scope, &self.entry, holding, now)?;
            if let Entered::Filled(filled) = entered {
                level = filled;
            }
            Ok(entered)
        });
        Completed { outcome, level, heard: Vec::new() }
    }

    fn pushes(reply: &mut Self::Reply) -> Vec<Push> {
        std::mem::take(&mut reply.heard)
    }
}
