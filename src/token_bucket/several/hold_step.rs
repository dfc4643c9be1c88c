//! Steps on the holds of several buckets in one operation: `lua/hold.lua` in Rust.

use std::sync::Arc;
use std::{iter, slice};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::step::Buckets;
use super::{Price, Several, Terms, Together};
use crate::store::{Arguments, Fields, Garbled, Operation, Repeat, Script};
use crate::token_bucket::Decision;
use crate::token_bucket::bucket_state::BucketState;
use crate::token_bucket::holds::{HoldReply, HoldStep, Outcome, Verb};
use crate::token_bucket::operations::{HOLD, MOST_SLOW_RUNS, PARTS, write_limits};
use crate::token_bucket::state::Bucket;
use crate::{Error, Key};

/// A step on the holds of a request, one of each limit.
#[derive(Clone, Debug)]
pub(crate) struct HoldAllStep {
    pub(crate) terms: Arc<Terms>,
    /// In the order of the limits.
    pub(crate) steps: Steps,
    /// Whether it is done for all limits or for none. Otherwise, for each by itself.
    pub(crate) all_or_none: bool,
}

pub(in crate::token_bucket) type Steps = SmallVec<[HoldStep; 3]>;

#[derive(Debug)]
pub(crate) struct HoldAllReply {
    terms: Arc<Terms>,
    /// What became of each hold. If a step that is done for all or for none was not possible for one limit, the states are
    /// those without it.
    pub(crate) each: SmallVec<[HoldReply; 3]>,
}

impl HoldAllReply {
    /// Whether all are held.
    pub(crate) fn is_held(&self) -> bool {
        self.each.iter().all(|reply| reply.outcome == Outcome::Held)
    }

    /// The position of the first limit with this outcome.
    pub(in crate::token_bucket) fn first(&self, outcome: Outcome) -> Option<usize> {
        self.each.iter().position(|reply| reply.outcome == outcome)
    }
}

impl Operation for HoldAllStep {
    type Cell = Buckets;
    type Reply = HoldAllReply;
    // Only an authorization whose caller is gone is taken back.
    type Undo = Self;
    const SCRIPT: Script = HOLD;
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_SLOW_RUNS;
    const SAME_ONCE: bool = false;

    fn is_reserved(&self) -> bool {
        self.steps.iter().all(HoldStep::is_reserved)
    }

    fn group(&self) -> Option<u128> {
        Some(self.terms.all.id() as u128)
    }

    fn most_runs(&self) -> usize {
        (MOST_SLOW_RUNS / self.terms.all.limits().len()).max(1)
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        write_limits(self.terms.each.iter(), call);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(self.all_or_none.into());
        self.steps
            .iter()
            .for_each(|step| step.write(iter::empty(), call));
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<HoldAllReply, Garbled> {
        let each = self
            .steps
            .into_iter()
            .map(|step| step.decode(0, now, fields.one()?));
        Ok(HoldAllReply {
            terms: self.terms,
            each: each.collect::<Result<_, _>>()?,
        })
    }

    fn apply(self, cells: &mut Buckets, now: i64) -> HoldAllReply {
        let Self {
            terms,
            steps,
            all_or_none,
        } = self;
        cells.0.resize(terms.each.len(), Bucket::default());
        let mut after = if all_or_none {
            cells.clone()
        } else {
            std::mem::take(cells)
        };
        let each = after
            .0
            .iter_mut()
            .zip(&steps)
            .map(|(bucket, step)| step.clone().apply(bucket, now));
        let mut reply = HoldAllReply {
            terms,
            each: each.collect(),
        };
        if !all_or_none || reply.is_held() {
            *cells = after;
            return reply;
        }
        for ((bucket, step), reply) in cells.0.iter_mut().zip(steps).zip(&mut reply.each) {
            // A step that changes nothing by itself.
            let nothing = HoldStep {
                verb: Verb::Extend { amount: 0, ttl: 0 },
                ..step
            };
            reply.state = nothing.apply(bucket, now).state;
        }
        reply
    }

    fn undo(replies: &[HoldAllReply]) -> Option<Self> {
        // A run is one step.
        let [HoldAllReply { terms, each }] = replies else {
            return None;
        };
        let steps = each
            .iter()
            .map(|reply| HoldStep::undo(slice::from_ref(reply)))
            .collect::<Option<_>>()?;
        Some(Self {
            terms: Arc::clone(terms),
            steps,
            all_or_none: false,
        })
    }
}

impl Several {
    /// Whether steps on the holds of these keys, one per limit, are one operation.
    pub(in crate::token_bucket) fn are_together(&self, keys: &[Key]) -> bool {
        match &self.limits.places.together {
            Together::Redis(..) => self.are_in_one_place(keys),
            Together::InMemory(_) => true,
            Together::No => false,
        }
    }

    /// Runs steps on the holds of keys that [are together](Self::are_together).
    pub(in crate::token_bucket) async fn run_on_holds(
        &self,
        keys: &[Key],
        steps: Steps,
        all_or_none: bool,
    ) -> Result<HoldAllReply, Error> {
        let step = HoldAllStep {
            terms: Arc::clone(&self.limits.terms),
            steps,
            all_or_none,
        };
        match &self.limits.places.together {
            Together::Redis(_, client) => client.run(Key::of(keys), step).await,
            Together::InMemory(cells) => self.step(cells, keys, &step, |limit, reply| {
                let release = HoldStep::undo(slice::from_ref(&reply.each[limit]));
                if let Some(release) = release.filter(|_| reply.is_held()) {
                    self.limits.buckets[limit]
                        .clients
                        .holds
                        .client
                        .detach(keys[limit].clone(), release);
                }
            }),
            Together::No => Err(Error::invalid("the limits are in different stores")),
        }
    }

    /// Sends steps on the holds of keys that [are together](Self::are_together), and calls `then` with the answer. `false`: the
    /// buckets are in memory, where nothing is sent.
    pub(in crate::token_bucket) fn send_to_holds(
        &self,
        keys: &[Key],
        steps: impl FnOnce() -> Steps,
        then: impl FnOnce(Result<HoldAllReply, Error>) + Send + 'static,
    ) -> bool {
        let Together::Redis(_, client) = &self.limits.places.together else {
            return false;
        };
        let terms = Arc::clone(&self.limits.terms);
        let step = HoldAllStep {
            terms,
            steps: steps(),
            all_or_none: false,
        };
        client.send(Handle::try_current().ok(), Key::of(keys), step, then);
        true
    }

    /// The decision on a request for the tokens in `price`, with the states of all limits after it. `refused`: the position of
    /// the limit that has refused it.
    pub(in crate::token_bucket) fn decided(
        &self,
        price: Price,
        refused: Option<usize>,
        states: impl Iterator<Item = BucketState>,
    ) -> Decision {
        let (terms, states) = (Arc::clone(&self.limits.terms), states.collect());
        super::Decided {
            terms,
            price,
            admitted: refused.is_none(),
            states,
        }
        .decision_by(refused)
    }
}
