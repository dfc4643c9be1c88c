//! The operations on the leases of a key. Each has one implementation in the library in `lua/`, and one in Rust.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::lease::key_state::{AcquireTerms, KeyState, Position, Spans, TokenState};
use crate::lease::kind::{Entry, Found, Kind, LEASES, Look, Outcome, Query, Scope};
use crate::lease::options::micros;
use crate::lease::settings::KeyLimit;
use crate::lease::token::Token;
use crate::store::notifier::Push;
use crate::store::operation::{
    Arguments, Field, Fields, Garbled, Operation, Repeat, Script, function,
};

/// The arguments that all scripts of a namespace share.
#[derive(Debug)]
pub(crate) struct ScriptContext<K: Kind> {
    /// See [`Spans::with`].
    pub(crate) channels: Arc<str>,
    pub(crate) spans: Spans,
    pub(crate) scope: Scope<K>,
}

impl<K: Kind> ScriptContext<K> {
    /// Acquires in memory.
    pub(super) fn acquire(
        &self,
        state: &mut StateOf<K>,
        token: &Token,
        query: Option<&Query<K>>,
        bypass: bool,
        terms: AcquireTerms,
        now: i64,
    ) -> Answer<Found<K>> {
        let look = match query {
            Some(query) => K::Outcome::look(&state.holders, &self.scope, query, bypass, now),
            None => Look::Open(None),
        };
        let (found, done) = match look {
            Look::Open(found) => (found, None),
            Look::Meanwhile(found) => (Some(found), Some(false)),
            Look::Done(found) => (Some(found), Some(true)),
        };
        let told = query.and_then(K::Outcome::told);
        let what = ReplyKind::Acquired(state.acquire(token, terms, told, done, now, self.spans));
        // In memory, the cell pushes all messages.
        Answer {
            now,
            what,
            found,
            heard: Vec::new(),
            twice: false,
        }
    }

    /// Stores an outcome in memory, and releases the lease. Returns whether the lease was still held, and how full the
    /// filter is now; or why the outcome was not stored.
    pub(super) fn complete(
        &self,
        state: &mut StateOf<K>,
        token: &Token,
        entry: &Entry<K>,
        now: i64,
    ) -> Result<(bool, u64), Found<K>> {
        let enter = |holders: &mut _, of| K::Outcome::enter(holders, &self.scope, entry, of, now);
        state.complete(token, now, enter)
    }
}

impl Spans {
    /// Returns an argument for `lua/queue.lua`, which has the other spans itself: how long a grant lasts, and the
    /// prefix of the channel names.
    pub(crate) fn with(self, channels: &str) -> Arc<str> {
        format!("{} {channels}", self.grant).into()
    }
}

/// Acquires a lease or a place in the queue, or releases it, perhaps with an outcome. These are one operation, so that
/// they are sent in the same call.
#[derive(Debug)]
pub(crate) struct AcquireRelease<K: Kind> {
    pub(crate) context: Arc<ScriptContext<K>>,
    pub(crate) token: Token,
    pub(crate) verb: VerbOf<K>,
    /// The terms of an acquire. Other verbs can share a call with acquires of any terms.
    pub(crate) terms: AcquireTerms,
}

#[derive(Clone, Debug)]
pub(crate) enum Verb<Q, E> {
    /// `bypass`: acquire in spite of outcomes of earlier leases.
    Acquire { query: Option<Q>, bypass: bool },
    /// `withdraws`: an acquire of the token that runs later is refused.
    Release { withdraws: bool },
    /// Stores the outcome of a lease, releases the lease, and makes the waiters acquire again. `again`: it was sent
    /// before, and the reply is not known.
    Complete { entry: E, again: bool },
}

pub(crate) type VerbOf<K> = Verb<Query<K>, Entry<K>>;

/// The reply to [`AcquireRelease`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer<F> {
    /// The server's time; 0 for a release, which does not read it.
    pub(crate) now: i64,
    pub(crate) what: ReplyKind,
    /// The outcome of an earlier lease, or the reason why the outcome of this one was not stored.
    pub(crate) found: Option<F>,
    /// The messages to other waiters of this process.
    pub(crate) heard: Vec<Push>,
    /// Whether the call was sent twice: then the second copy may run after a release.
    pub(crate) twice: bool,
}

#[cfg(test)]
impl<F> Answer<F> {
    /// Makes the reply to an acquire.
    pub(super) fn acquired(now: i64, standing: Position, found: Option<F>, twice: bool) -> Self {
        Self {
            now,
            what: ReplyKind::Acquired(standing),
            found,
            heard: Vec::new(),
            twice,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    Acquired(Position),
    Released(TokenState),
    /// Whether the lease was held, as far as is known if the call was sent twice; and how full the filter is now, for
    /// kinds that have one.
    Completed(bool, u64),
}

/// A release of a lease or of a place in the queue, or the last renewal of a lease that is detached.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) key: Key,
    pub(crate) token: Token,
    /// Whether the acquire may run after the release.
    pub(crate) withdrawn: bool,
    /// Whether the lease is renewed instead.
    pub(crate) renews: bool,
    /// The ttl of its acquire, µs.
    pub(crate) ttl: i64,
    /// How long the lease or the place may last.
    pub(crate) left: Duration,
}

impl Release {
    pub(crate) fn new(
        key: &Key,
        token: &Token,
        withdrawn: bool,
        ttl: Duration,
        left: Duration,
    ) -> Self {
        Self {
            key: key.clone(),
            token: token.clone(),
            withdrawn,
            renews: false,
            ttl: micros(ttl),
            left,
        }
    }
}

/// Renews a lease.
#[derive(Debug)]
pub(crate) struct Renew<K> {
    pub(crate) token: Token,
    pub(crate) ttl: i64,
    /// The next fence must be higher than this one; 0: no condition.
    pub(crate) fence: i64,
    pub(crate) kind: PhantomData<fn(K)>,
}

/// Marks waiters as alive, and returns their states.
#[derive(Debug)]
pub(crate) struct Heartbeat<K: Kind> {
    pub(crate) context: Arc<ScriptContext<K>>,
    /// The limit of the key that this process knows.
    pub(crate) limit: Option<KeyLimit>,
    pub(crate) tokens: Vec<Token>,
}

/// The states of several waiters, and the server's time, µs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Positions {
    pub(crate) now: i64,
    pub(crate) soonest: i64,
    pub(crate) each: Vec<Position>,
    /// The grants to waiters of this process.
    pub(crate) granted: Vec<Push>,
}

pub(super) const WRONG_TYPE: Garbled = Garbled(
    "WRONGTYPE a key of the lease is of another type: delete the key, or choose another name",
);

const OUT_OF_MEMORY: Garbled = Garbled("OOM the server is out of memory, so nothing was done");

/// The status of a run without a special result.
const USUAL: i64 = 4;

const GARBLED: Garbled = Garbled("the script replied with something other than a list of grants");

/// Returns the state of a token from the numbers of a reply. A lock of another program may have a ttl whose end does
/// not fit into the number.
fn standing(status: i64, time: i64, fence: i64, before: i64) -> Position {
    let time = time.clamp(0, 1 << 53);
    match status {
        1 => Position::Held {
            expiry: time,
            fence,
        },
        2 => Position::Queued {
            soonest: time,
            before,
        },
        3 => Position::Done,
        -2 => Position::Withdrawn,
        _ => Position::Refused {
            soonest: time,
            before,
        },
    }
}

/// Reads the messages to other waiters of this process: a list, or a number if there are none.
pub(super) fn messages(field: Field<'_>) -> Result<Vec<Push>, Garbled> {
    let Field::List(mut list) = field else {
        return Ok(Vec::new());
    };
    let mut messages = Vec::new();
    while let Ok(message) = list.next() {
        let Field::Text(text) = message else {
            return Err(GARBLED);
        };
        messages.push(Push::parse(text).ok_or(GARBLED)?);
    }
    Ok(messages)
}

pub(crate) type StateOf<K> = KeyState<<K as Kind>::Holders>;

impl<K: Kind> Operation for AcquireRelease<K> {
    type Cell = StateOf<K>;
    type Reply = Answer<Found<K>>;
    // A waiter that is dropped withdraws its token itself, since the reply may be lost too.
    type Undo = Self;
    const SCRIPT: Script =
        function!(Writes: "leases", K::NAME; LEASES, K::PIECES, &["leases", "runs"]);
    const PARTS: &'static [&'static str] = K::PARTS;
    const REPEAT: Repeat = Repeat::Safe;
    const MOST_RUNS: usize = K::Outcome::MOST_RUNS;
    const SAME_ONCE: bool = false;
    // The fixed cost of a call is a third of the cost of a dozen runs, so more calls at once would cost more than they
    // gain.
    const FLUSHERS: usize = 2;
    const NOTIFIES: bool = true;
    const BULK: bool = K::Outcome::BULK;

    fn is_reserved(&self) -> bool {
        !matches!(self.verb, Verb::Acquire { .. })
    }

    fn payload(&self) -> usize {
        match &self.verb {
            Verb::Complete { entry, .. } => K::Outcome::payload(entry),
            Verb::Acquire { .. } | Verb::Release { .. } => 0,
        }
    }

    fn group(&self) -> Option<u128> {
        match self.verb {
            Verb::Acquire { .. } => Some(self.terms.number()),
            Verb::Release { .. } | Verb::Complete { .. } => None,
        }
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        call.channels(Arc::clone(&self.context.channels));
        K::Outcome::write_scope(&self.context.scope, call);
        // The shared arguments belong to acquires, so only an acquire writes them.
        if let Verb::Acquire { .. } = self.verb {
            for number in self.terms.written() {
                call.integer(number);
            }
        }
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.word(match self.verb {
            Verb::Acquire { bypass: false, .. } => "acquire",
            Verb::Acquire { bypass: true, .. } => "bypass",
            Verb::Release { withdraws: false } => "release",
            Verb::Release { withdraws: true } => "withdraw",
            Verb::Complete { .. } => "complete",
        });
        call.text(self.token.text());
        match &self.verb {
            Verb::Acquire {
                query: Some(query), ..
            } => K::Outcome::write_query(query, call),
            Verb::Acquire { query: None, .. } | Verb::Release { .. } => {}
            Verb::Complete { entry, .. } => K::Outcome::write_entry(entry, call),
        }
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let twice = fields.sent_twice();
        let is_usual = fields.len() == 0;
        let mut numbers = [USUAL, 0, 0, 0];
        if !is_usual {
            for number in &mut numbers {
                *number = fields.integer()?;
            }
        }
        if numbers[0] == USUAL {
            numbers = match self.verb {
                Verb::Acquire { .. } => [1, now + self.terms.ttl, K::usual_fence(now), 0],
                Verb::Release { .. } | Verb::Complete { .. } => [1, 0, 0, 0],
            };
        }
        let [status, time, fence, before] = numbers;
        let what = match (self.verb, status) {
            (_, -1) => return Err(WRONG_TYPE),
            (_, -3) => return Err(OUT_OF_MEMORY),
            (Verb::Acquire { .. }, status) => {
                ReplyKind::Acquired(standing(status, time, fence, before))
            }
            (Verb::Release { .. }, 1) => ReplyKind::Released(TokenState::Held),
            (Verb::Release { .. }, 2) => ReplyKind::Released(TokenState::Waiting),
            (Verb::Release { .. }, _) => ReplyKind::Released(TokenState::Neither),
            // The first of two copies has released the lease, unless the lease was lost before. In the second case the
            // lease may also be free, but no other holder has it.
            (Verb::Complete { again, .. }, status) => ReplyKind::Completed(
                status == 1 || (twice || again) && status == 0,
                u64::try_from(time).unwrap_or(0),
            ),
        };
        let now = if matches!(what, ReplyKind::Released(_)) {
            0
        } else {
            now
        };
        if is_usual {
            return Ok(Answer {
                now,
                what,
                found: None,
                heard: Vec::new(),
                twice,
            });
        }
        let heard = messages(fields.next()?)?;
        let found = match K::Outcome::KEPT.then(|| fields.next()).transpose()? {
            None | Some(Field::Integer(0)) => None,
            Some(field) => Some(K::Outcome::decode(field)?),
        };
        Ok(Answer {
            now,
            what,
            found,
            heard,
            twice,
        })
    }

    fn apply(self, state: &mut StateOf<K>, now: i64) -> Self::Reply {
        let Self {
            context,
            token,
            verb,
            terms,
        } = &self;
        let mut found = None;
        let what = match verb {
            Verb::Acquire { query, bypass } => {
                return context.acquire(state, token, query.as_ref(), *bypass, *terms, now);
            }
            Verb::Release { withdraws } => {
                let was = state.release(token, *withdraws, now, context.spans);
                return Answer {
                    now: 0,
                    what: ReplyKind::Released(was),
                    found,
                    heard: Vec::new(),
                    twice: false,
                };
            }
            Verb::Complete { entry, .. } => {
                let completed = context.complete(state, token, entry, now);
                let (was_held, level) = completed.unwrap_or_else(|obstacle| {
                    found = Some(obstacle);
                    (false, 0)
                });
                ReplyKind::Completed(was_held, level)
            }
        };
        // In memory, the cell pushes all messages.
        Answer {
            now,
            what,
            found,
            heard: Vec::new(),
            twice: false,
        }
    }

    fn pushes(reply: &mut Self::Reply) -> Vec<Push> {
        std::mem::take(&mut reply.heard)
    }
}

impl<K: Kind> Operation for Renew<K> {
    type Cell = StateOf<K>;
    /// The server's time, and the new expiry, µs; `None` if the token no longer holds.
    type Reply = (i64, Option<i64>);
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "renew", K::NAME; LEASES, K::PIECES, &["care"]);
    const PARTS: &'static [&'static str] = K::PARTS;
    const REPEAT: Repeat = Repeat::Safe;
    const MOST_RUNS: usize = 192;
    const BULK: bool = K::Outcome::BULK;
    // The same token twice (a watchdog and a user renew at the same time) means two runs.
    const SAME_ONCE: bool = false;
    const RESERVED: bool = true;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(self.token.text());
        call.integer(self.ttl);
        call.integer(self.fence);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        match (fields.integer()?, fields.integer()?) {
            (1, expiry) => Ok((now, Some(expiry))),
            (0, _) => Ok((now, None)),
            _ => Err(WRONG_TYPE),
        }
    }

    fn apply(self, state: &mut StateOf<K>, now: i64) -> Self::Reply {
        (now, state.renew(&self.token, self.ttl, self.fence, now))
    }
}

impl<K: Kind> Operation for Heartbeat<K> {
    type Cell = StateOf<K>;
    type Reply = Positions;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "heartbeat", K::NAME; LEASES, K::PIECES, &["care"]);
    const PARTS: &'static [&'static str] = K::PARTS;
    const REPEAT: Repeat = Repeat::Safe;
    const NOTIFIES: bool = true;
    const BULK: bool = K::Outcome::BULK;
    const RESERVED: bool = true;

    fn shared(&self, call: &mut Arguments<'_>) {
        call.channels(Arc::clone(&self.context.channels));
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(self.limit.map(KeyLimit::text).unwrap_or_default().into());
        for token in &self.tokens {
            call.text(token.text());
        }
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let soonest = fields.integer()?;
        if soonest < 0 {
            return Err(WRONG_TYPE);
        }
        let mut list = fields.list()?;
        let each = self.tokens.iter().map(|_| {
            let status = list.integer()?;
            let time = list.integer()?;
            let fence = list.integer()?;
            Ok(standing(status, time, fence, 0))
        });
        let each = each.collect::<Result<_, _>>()?;
        Ok(Positions {
            now,
            soonest,
            each,
            granted: messages(fields.next()?)?,
        })
    }

    fn apply(self, state: &mut StateOf<K>, now: i64) -> Self::Reply {
        let (soonest, each) = state.heartbeat(&self.tokens, self.limit, now, self.context.spans);
        Positions {
            now,
            soonest,
            each,
            granted: Vec::new(),
        }
    }

    fn pushes(reply: &mut Self::Reply) -> Vec<Push> {
        std::mem::take(&mut reply.granted)
    }
}

#[cfg(test)]
mod tests;
