//! Acquires leases of several keys in one step: all of them, or none.

use std::sync::Arc;

use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::{Busy, Cause, Subject, Why};
use crate::key::Key;
use crate::lease::acquire::WithdrawOnDrop;
use crate::lease::handle::{Lease, Owner};
use crate::lease::holders::{Exclusive, Holder};
use crate::lease::key_state::{KeyState, Spans};
use crate::lease::kind::{Holders as _, Kind as _, LEASES};
use crate::lease::namespace::Leases;
use crate::lease::operations::WRONG_TYPE;
use crate::lease::options::micros;
use crate::lease::process::event::Grant;
use crate::lease::process::wait::unexpected;
use crate::lease::token::{Suffix, Token};
use crate::store::client::{Client, Namespace};
use crate::store::notifier::Push;
use crate::store::operation::{
    Arguments, Cell, Fields, Garbled, Operation, Repeat, Script, function,
};
use crate::store::validity::{Anchor, Validity};

/// The maximum number of keys in one step. Locking this many takes about 0.3 ms.
pub(crate) const MOST_KEYS: usize = 32;

type State = KeyState<Holder>;

/// The states of several keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct States(pub(super) Vec<State>);

/// Acquires a lease of each of several keys, or none. There is one token for each key.
#[derive(Clone, Debug)]
pub(crate) struct AcquireAll {
    /// See [`Spans::with`].
    pub(super) channels: Arc<str>,
    pub(super) spans: Spans,
    /// µs
    pub(super) ttl: i64,
    pub(super) tokens: Arc<[Token]>,
}

/// The reply to [`AcquireAll`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllAnswer {
    pub(super) now: i64,
    pub(super) what: All,
    /// Whether the call was sent twice. Then the second copy may run later.
    twice: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum All {
    /// The expiry (µs) and the fence of each lease.
    Held(Vec<(i64, i64)>),
    /// A key is held. The next lease ends at `soonest` (0: unknown), and `before` waiters are in the queue of the key.
    Refused {
        soonest: i64,
        before: i64,
    },
    Withdrawn,
}

impl Cell for States {
    fn is_idle(&self, now: i64) -> bool {
        self.0.iter().all(|state| state.is_idle(now))
    }

    fn pushes(&mut self) -> Vec<Push> {
        self.0.iter_mut().flat_map(Cell::pushes).collect()
    }
}

impl AcquireAll {
    /// Runs the step in memory, on one state for each token.
    pub(super) fn step(&self, states: &mut [State], now: i64) -> All {
        for (state, token) in states.iter_mut().zip(&*self.tokens) {
            state.sweep(now);
            if state.holders.held(token, now).is_some() {
                continue;
            }
            if state
                .tombstones
                .get(token)
                .is_some_and(|until| *until > now)
            {
                return All::Withdrawn;
            }
            state.grant(now, self.spans);
            if state.holders.used() > 0 {
                return All::Refused {
                    soonest: state.holders.soonest(now),
                    before: Holder::<true, ()>::counted(&state.queue, 0),
                };
            }
        }
        let held = states.iter_mut().zip(&*self.tokens).map(|(state, token)| {
            state.holders.held(token, now).unwrap_or_else(|| {
                let expiry = now + self.ttl;
                (expiry, state.holders.hold(token, expiry, now, &state.queue))
            })
        });
        All::Held(held.collect())
    }
}

impl Operation for AcquireAll {
    type Cell = States;
    type Reply = AllAnswer;
    // A caller that is dropped withdraws its tokens itself, since the reply may be lost too.
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "acquire_all", "mutex"; LEASES, &["mutex", "several"]);
    const PARTS: &'static [&'static str] = Exclusive::PARTS;
    const REPEAT: Repeat = Repeat::Safe;
    const SAME_ONCE: bool = false;

    fn shared(&self, call: &mut Arguments<'_>) {
        call.channels(Arc::clone(&self.channels));
        call.integer(self.ttl);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        self.tokens.iter().for_each(|token| call.text(token.text()));
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<AllAnswer, Garbled> {
        let twice = fields.sent_twice();
        let what = match fields.integer()? {
            1 => {
                let each = self
                    .tokens
                    .iter()
                    .map(|_| Ok((fields.integer()?, fields.integer()?)));
                All::Held(each.collect::<Result<_, _>>()?)
            }
            0 => All::Refused {
                soonest: fields.integer()?,
                before: fields.integer()?,
            },
            -2 => All::Withdrawn,
            _ => return Err(WRONG_TYPE),
        };
        Ok(AllAnswer { now, what, twice })
    }

    fn apply(self, states: &mut States, now: i64) -> AllAnswer {
        states.0.resize(self.tokens.len(), State::default());
        AllAnswer {
            now,
            what: self.step(&mut states.0, now),
            twice: false,
        }
    }
}

impl Leases<Exclusive> {
    /// Returns the client for leases of several keys. `None` in memory, where no client is needed.
    pub(crate) fn several(&self) -> Option<Client<AcquireAll>> {
        Some(Namespace::<States>::each(&self.namespace.states)?.client())
    }

    /// Whether one step can lock all of these keys: on a Cluster, if they are in one slot.
    pub(crate) fn are_in_one_place(&self, keys: &[Key]) -> bool {
        let mut slots = keys.iter().map(|key| self.namespace.states.slot(key));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Acquires a lease of each of several keys in one step: all of them, or none. Does not wait. The keys must be
    /// distinct and [in one place](Self::are_in_one_place). `suffixes` has one for the token of each key.
    pub(crate) async fn acquire_all(
        &self,
        client: Option<&Client<AcquireAll>>,
        keys: &[Key],
        suffixes: &[Suffix],
    ) -> Result<Vec<Lease>, Error> {
        if self.holding().is_closed() {
            return Err(Error::interrupted());
        }
        let namespace = &self.namespace;
        let options = self.options();
        let (ids, tokens): (Vec<_>, Vec<_>) = suffixes
            .iter()
            .map(|suffix| namespace.local.token(self.holding(), suffix))
            .unzip();
        let mut undos = self.withdraw_on_drop(keys, &tokens);
        let acquire = AcquireAll {
            channels: Arc::clone(&namespace.context.channels),
            spans: namespace.context.spans,
            ttl: micros(options.ttl),
            tokens: tokens.iter().cloned().collect(),
        };
        let sent = clock::now();
        let answer = self.run_all(client, keys, acquire).await;
        // Without a reply, the acquire may still run. With a reply, a second copy may still run.
        let is_armed = answer
            .as_ref()
            .map_or_else(|error| !error.is_not_sent(), |answer| answer.twice);
        arm(&mut undos, is_armed);
        let AllAnswer { now, what, twice } = answer?;
        let held = self.all_held(what, now)?;
        arm(&mut undos, true);
        if self.holding().is_closed() {
            return Err(Error::interrupted());
        }
        let at = clock::now();
        let anchor = Anchor { sent, now };
        let validities = self.validities(&held, anchor, at)?;
        arm(&mut undos, false);
        let named = keys.iter().zip(tokens.iter().zip(ids));
        let grants = named.zip(held.iter().zip(validities));
        let leases = grants.map(|((key, (token, id)), ((_, fence), validity))| {
            self.lease(Grant {
                key: key.clone(),
                token: token.clone(),
                id,
                fence: *fence,
                twice,
                validity,
                at,
                offered: false,
            })
        });
        Ok(leases.collect())
    }

    /// Returns the guards that withdraw these tokens.
    fn withdraw_on_drop<'a>(
        &'a self,
        keys: &'a [Key],
        tokens: &'a [Token],
    ) -> Vec<WithdrawOnDrop<'a, Exclusive>> {
        let undo = |(key, token)| WithdrawOnDrop {
            namespace: &self.namespace,
            options: self.options(),
            key,
            token,
            is_armed: true,
        };
        keys.iter().zip(tokens).map(undo).collect()
    }

    /// Runs the step: in memory, or on the server.
    async fn run_all(
        &self,
        client: Option<&Client<AcquireAll>>,
        keys: &[Key],
        acquire: AcquireAll,
    ) -> Result<AllAnswer, Error> {
        match (self.namespace.states.cells(), client) {
            (Some(cells), _) => cells.step_all(keys, |states, now| AllAnswer {
                now,
                what: acquire.step(states, now),
                twice: false,
            }),
            (None, Some(client)) => client.run(Key::of(keys), acquire).await,
            (None, None) => Err(unexpected()),
        }
    }

    /// Returns the expiry of each lease by the server's clock, and its fence. Fails if a key was refused.
    fn all_held(&self, what: All, now: i64) -> Result<Vec<(i64, i64)>, Error> {
        match what {
            All::Held(held) => Ok(held),
            All::Refused { soonest, before } => {
                let busy = Busy {
                    subject: Subject::Lock,
                    why: Why::Taken,
                    retry_after: self.namespace.retry_after(soonest - now, before),
                };
                Err(busy.into())
            }
            All::Withdrawn => Err(unexpected()),
        }
    }

    /// Returns the validity of each lease by the local clock. Fails if one has expired.
    fn validities(
        &self,
        held: &[(i64, i64)],
        anchor: Anchor,
        at: Instant,
    ) -> Result<Vec<Validity>, Error> {
        let options = self.options();
        let validity = |(expiry, _): &(i64, i64)| {
            let until = anchor.until(*expiry, options.ttl, options.drift);
            Validity::granted(until, at)
        };
        let validities = held.iter().map(validity).collect::<Option<Vec<_>>>();
        let text = "the leases were granted, but expired before the reply arrived";
        validities.ok_or_else(|| Error::unavailable(Cause::TimedOut, text))
    }

    fn lease(&self, grant: Grant) -> Lease {
        let (holding, owner) = self.common();
        let lease = self.namespace.hold(grant, holding);
        Lease::new(lease, Owner::Common(Arc::clone(owner)))
    }
}

/// Whether the guards withdraw their tokens.
fn arm(undos: &mut [WithdrawOnDrop<'_, Exclusive>], is_armed: bool) {
    undos.iter_mut().for_each(|undo| undo.is_armed = is_armed);
}
