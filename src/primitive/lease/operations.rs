//! The steps on the leases of a key: each is one script in `lua/lease/` and the same in Rust.

use std::marker::PhantomData;
use std::sync::Arc;

use super::kind::{Found, Kind, Query, Scope};
use super::record::{Look, Record};
use super::room::{Room, Spans, Standing, Was};
use crate::store::{Arguments, Field, Fields, Garbled, Never, Operation, Push, Script};

/// What the scripts of a namespace need to know besides what is asked.
#[derive(Debug)]
pub(crate) struct Scene<K: Kind> {
    /// What the names of channels begin with.
    pub(crate) channels: Arc<str>,
    pub(crate) spans: Spans,
    /// How most take.
    pub(crate) usual: Take,
    pub(crate) scope: Scope<K>,
}

/// How to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Take {
    /// µs.
    pub(crate) ttl: i64,
    /// A queue of so many takes no more; 0: do not wait.
    pub(crate) most: i64,
    /// Lower ones go first.
    pub(crate) rank: i64,
}

impl<K: Kind> Scene<K> {
    pub(super) fn write(&self, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.channels));
        call.integer(self.spans.claim);
        call.integer(self.spans.life);
        call.integer(self.spans.mourning);
    }
}

/// Takes a lease or a place in the queue for one, or gives it back: one operation, so that those who give and those
/// who take leave together.
#[derive(Debug)]
pub(crate) struct Turn<K: Kind> {
    pub(crate) scene: Arc<Scene<K>>,
    pub(crate) token: Arc<str>,
    pub(crate) verb: Verb,
    /// For those who take.
    pub(crate) query: Option<Query<K>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Take(Take),
    /// Takes whatever is on record.
    Insist(Take),
    Give {
        /// Whether a take that comes after it is refused; else none can.
        withdrawn: bool,
    },
}

/// The answer to a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turned<F> {
    pub(crate) outcome: Outcome,
    /// What was on record.
    pub(crate) found: Option<F>,
    /// What was granted to others of this process.
    pub(crate) granted: Vec<Push>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Taken(At<Standing>),
    Given(Was),
}

/// Makes a lease last anew.
#[derive(Debug)]
pub(crate) struct Renew<K> {
    pub(crate) token: Arc<str>,
    pub(crate) ttl: i64,
    pub(crate) kind: PhantomData<fn(K)>,
}

/// Says that waiters are alive, and asks what has become of them.
#[derive(Debug)]
pub(crate) struct Beat<K: Kind> {
    pub(crate) scene: Arc<Scene<K>>,
    pub(crate) tokens: Vec<Arc<str>>,
    pub(crate) ttl: i64,
}

/// Looks at who holds and who waits.
#[derive(Debug)]
pub(crate) struct Inspect<K>(pub(crate) PhantomData<fn(K)>);

/// An answer, and when the server gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At<T> {
    pub(crate) now: i64,
    pub(crate) what: T,
}

/// What is held of a key, and who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub(crate) used: i64,
    pub(crate) waiting: i64,
    /// When the next lease ends; 0: unknown.
    pub(crate) soonest: i64,
}

/// What several waiters have come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standings {
    pub(crate) soonest: i64,
    pub(crate) each: Vec<Standing>,
}

pub(super) const WRONG_TYPE: Garbled =
    Garbled("WRONGTYPE a key of the lease holds something else: delete it, or choose another name");

const GARBLED: Garbled = Garbled("a script answered something else where a grant belongs");

/// Reads the messages to others of this process: a list, or a number where there are none.
pub(super) fn messages(field: Field<'_>) -> Result<Vec<Push>, Garbled> {
    let Field::List(mut list) = field else { return Ok(Vec::new()) };
    let mut messages = Vec::new();
    while let Ok(message) = list.next() {
        let Field::Text(text) = message else { return Err(GARBLED) };
        messages.push(Push::parse(text).ok_or(GARBLED)?);
    }
    Ok(messages)
}

pub(super) type Here<K> = Room<<K as Kind>::Holders>;

impl<K: Kind> Turn<K> {
    fn take(&self) -> Take {
        match self.verb {
            Verb::Take(take) | Verb::Insist(take) => take,
            Verb::Give { .. } => self.scene.usual,
        }
    }
}

impl<K: Kind> Operation for Turn<K> {
    type Cell = Here<K>;
    type Reply = Turned<Found<K>>;
    // Whoever goes away withdraws by itself, since the answer may be lost too.
    type Undo = Never<Here<K>>;
    const SCRIPT: Script = K::SCRIPTS.turn;
    const PARTS: &'static [&'static str] = K::PARTS;
    const MOST_RUNS: usize = K::Record::MOST_RUNS;
    const SAME_ONCE: bool = false;
    // What a call costs by itself is a third of the cost of a dozen runs, so more at once cost more than they bring.
    const FLUSHERS: usize = 2;
    const NOTIFIES: bool = true;
    const BULK: bool = K::Record::BULK;

    fn is_reserved(&self) -> bool {
        matches!(self.verb, Verb::Give { .. })
    }

    /// Those who give leave with those who take as most do.
    fn group(&self) -> usize {
        match self.take() {
            usual if usual == self.scene.usual => 0,
            // The time to live is the same for all of a namespace.
            Take { most, rank, .. } => (1 + 2 * most + rank) as usize,
        }
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        self.scene.write(call);
        let Take { ttl, most, rank } = self.take();
        [ttl, most, rank].into_iter().for_each(|number| call.integer(number));
        K::Record::write_scope(&self.scene.scope, call);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.word(match self.verb {
            Verb::Take(_) => "take",
            Verb::Insist(_) => "insist",
            Verb::Give { withdrawn: false } => "give",
            Verb::Give { withdrawn: true } => "void",
        });
        call.text(Arc::clone(&self.token));
        if let (Verb::Take(_) | Verb::Insist(_), Some(query)) = (self.verb, &self.query) {
            K::Record::write_query(query, call);
        }
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let (status, time, fence, before) =
            (fields.integer()?, fields.integer()?, fields.integer()?, fields.integer()?);
        let outcome = match (self.verb, status) {
            (_, -1) => return Err(WRONG_TYPE),
            (Verb::Take(_) | Verb::Insist(_), status) => {
                let what = match status {
                    1 => Standing::Held { expiry: time, fence },
                    2 => Standing::Queued { soonest: time, before },
                    3 => Standing::Done,
                    -2 => Standing::Withdrawn,
                    _ => Standing::Refused { soonest: time, before },
                };
                Outcome::Taken(At { now, what })
            }
            (Verb::Give { .. }, 1) => Outcome::Given(Was::Held),
            (Verb::Give { .. }, 2) => Outcome::Given(Was::Waiting),
            (Verb::Give { .. }, _) => Outcome::Given(Was::Neither),
        };
        let granted = messages(fields.next()?)?;
        let found = match K::Record::KEPT.then(|| fields.next()).transpose()? {
            None | Some(Field::Integer(0)) => None,
            Some(field) => Some(K::Record::decode(field)?),
        };
        Ok(Turned { outcome, found, granted })
    }

    fn apply(self, room: &mut Here<K>, now: i64) -> Self::Reply {
        let (token, spans) = (&self.token, self.scene.spans);
        let mut found = None;
        let outcome = match self.verb {
            Verb::Take(take) | Verb::Insist(take) => {
                let insists = matches!(self.verb, Verb::Insist(_));
                let look = match &self.query {
                    Some(query) => K::Record::look(room.holders(), &self.scene.scope, query, insists, now),
                    None => Look::Open(None),
                };
                let done = look.is_done();
                found = look.found();
                Outcome::Taken(At { now, what: room.take(token, take, done, now, spans) })
            }
            Verb::Give { withdrawn } => Outcome::Given(room.give(token, withdrawn, now, spans)),
        };
        // In process all is pushed by the cell.
        Turned { outcome, found, granted: Vec::new() }
    }

    fn pushes(reply: &mut Self::Reply) -> Vec<Push> {
        std::mem::take(&mut reply.granted)
    }
}

impl<K: Kind> Operation for Renew<K> {
    type Cell = Here<K>;
    /// The new expiry, or `None` where it is not held any more.
    type Reply = At<Option<i64>>;
    type Undo = Never<Here<K>>;
    const SCRIPT: Script = K::SCRIPTS.renew;
    const PARTS: &'static [&'static str] = K::PARTS;
    const MOST_RUNS: usize = 192;
    const BULK: bool = K::Record::BULK;
    // Twice the same token, as where a watchdog and a user renew at once, is two runs.
    const SAME_ONCE: bool = false;

    fn is_reserved(&self) -> bool {
        true
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.token));
        call.integer(self.ttl);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        match (fields.integer()?, fields.integer()?) {
            (1, expiry) => Ok(At { now, what: Some(expiry) }),
            (0, _) => Ok(At { now, what: None }),
            _ => Err(WRONG_TYPE),
        }
    }

    fn apply(self, room: &mut Here<K>, now: i64) -> Self::Reply {
        At { now, what: room.renew(&self.token, self.ttl, now) }
    }
}

impl<K: Kind> Operation for Beat<K> {
    type Cell = Here<K>;
    type Reply = At<Standings>;
    type Undo = Never<Here<K>>;
    const SCRIPT: Script = K::SCRIPTS.beat;
    const PARTS: &'static [&'static str] = K::PARTS;
    const BULK: bool = K::Record::BULK;

    fn is_reserved(&self) -> bool {
        true
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        self.scene.write(call);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(self.ttl);
        for token in &self.tokens {
            call.text(Arc::clone(token));
        }
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let soonest = fields.integer()?;
        if soonest < 0 {
            return Err(WRONG_TYPE);
        }
        let mut list = fields.list()?;
        let each = self.tokens.iter().map(|_| {
            let (status, expiry, fence) = (list.integer()?, list.integer()?, list.integer()?);
            Ok(match status {
                1 => Standing::Held { expiry, fence },
                2 => Standing::Queued { soonest: 0, before: 0 },
                _ => Standing::Refused { soonest: 0, before: 0 },
            })
        });
        Ok(At { now, what: Standings { soonest, each: each.collect::<Result<_, _>>()? } })
    }

    fn apply(self, room: &mut Here<K>, now: i64) -> Self::Reply {
        let (soonest, each) = room.beat(&self.tokens, self.ttl, now, self.scene.spans);
        At { now, what: Standings { soonest, each } }
    }
}

impl<K: Kind> Operation for Inspect<K> {
    type Cell = Here<K>;
    type Reply = At<Occupancy>;
    type Undo = Never<Here<K>>;
    const SCRIPT: Script = K::SCRIPTS.inspect;
    const PARTS: &'static [&'static str] = K::PARTS;
    const MOST_RUNS: usize = 64;

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let (used, soonest, waiting) = (fields.integer()?, fields.integer()?, fields.integer()?);
        if used < 0 {
            return Err(WRONG_TYPE);
        }
        Ok(At { now, what: Occupancy { used, waiting, soonest } })
    }

    fn apply(self, room: &mut Here<K>, now: i64) -> Self::Reply {
        let (used, waiting, soonest) = room.inspect(now);
        At { now, what: Occupancy { used, waiting, soonest } }
    }
}
