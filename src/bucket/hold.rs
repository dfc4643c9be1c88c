//! Steps on the holds of one to eight limits: `lua/hold.lua` in Rust. All kinds of steps are one operation, so that the
//! steps of many callers on one key share a call.
//!
//! The ids of a process are consecutive, so holds that begin together are in one *block* of 32 ids. Equal steps on a
//! block are one run, and equal holds of a block share a record in the store.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::{iter, slice};

use smallvec::SmallVec;

use crate::bucket::charge::JoinedTerms;
use crate::bucket::decision::BucketState;
use crate::bucket::holds::{MOST, OnEnd, Record};
use crate::bucket::quotas::Quotas;
use crate::bucket::wire::{HOLD, MOST_SLOW_RUNS, PARTS, WRONG_TYPE, read_bucket, write_limits};
use crate::bucket::{Ask, Bucket};
use crate::store::operation::{Arguments, Field, Fields, Garbled, Operation, Repeat, Script};

/// A step on one hold.
#[derive(Clone, Debug)]
pub(crate) struct HoldStep {
    pub(crate) quotas: Quotas,
    pub(crate) id: u128,
    /// The rule for a hold that ends by itself.
    pub(crate) on_end: OnEnd,
    pub(crate) verb: Verb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Holds `amount` tokens for `ttl` µs. If the hold exists, like `Extend`.
    Authorize { amount: u32, ttl: i64 },
    /// Raises the hold to at least `amount` tokens if they are available, and moves its end to at least `ttl` µs from
    /// now.
    Extend { amount: u32, ttl: i64 },
    /// Removes the hold and charges `amount`. If there is no such hold, charges `late`.
    Capture { amount: u32, late: u32 },
}

impl Verb {
    /// Ends the hold, and charges nothing.
    pub(crate) const RELEASE: Self = Self::Capture { amount: 0, late: 0 };

    /// Charges tokens for a hold that has ended. It is sent once, and only if the hold's only capture found that the
    /// hold had ended: a delayed copy of a capture may arrive after another copy that has removed the hold.
    pub(crate) fn late(late: u32) -> Self {
        Self::Capture { amount: 0, late }
    }
}

/// The outcome of a step on a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The tokens are not available.
    Refused,
    /// The tokens are held, or were held until this capture.
    Held,
    /// The hold does not exist, or has ended.
    Ended,
    /// The key already has the maximum number of holds.
    Full,
}

#[derive(Debug)]
pub(crate) struct HoldReply {
    pub(crate) outcome: Outcome,
    /// The tokens of the hold before a capture, or after another step; 0 if there is no hold.
    pub(crate) amount: i64,
    /// The state after the step, and after other steps of the same instant.
    pub(crate) state: BucketState,
    /// The id of the hold, if the step was an authorization.
    authorized: Option<u128>,
}

/// The number of ids in a block: the bits of a mask.
const BLOCK: u128 = 32;

/// The size of the result for one hold of a run whose results may differ: the outcome and the amount.
const ANSWER: usize = 5;

impl HoldStep {
    fn reply(self, outcome: Outcome, amount: i64, now: i64, bucket: Bucket) -> HoldReply {
        let authorized = matches!(self.verb, Verb::Authorize { .. }).then_some(self.id);
        HoldReply {
            outcome,
            amount,
            state: BucketState {
                quotas: self.quotas,
                now,
                bucket,
            },
            authorized,
        }
    }

    /// Writes the step as one text: the number of the step, the rule for the end, the block, the holds as a mask and
    /// their number, the amount, and another number. If there are several captures, the numbers of each follow.
    pub(crate) fn write<'a>(
        &'a self,
        others: impl ExactSizeIterator<Item = &'a Self> + Clone,
        call: &mut Arguments<'_>,
    ) {
        let all = || iter::once(self).chain(others.clone());
        let mask = all().fold(0, |mask, step| mask | 1_u32 << (step.id % BLOCK));
        let captures = all().filter_map(|step| match step.verb {
            Verb::Capture { amount, late } => Some((amount, late)),
            _ => None,
        });
        let (verb, amount, other) = match self.verb {
            Verb::Authorize { amount, ttl } => (0, amount.into(), ttl),
            Verb::Extend { amount, ttl } => (1, amount.into(), ttl),
            Verb::Capture { .. } => {
                captures
                    .clone()
                    .fold((2, 0, 0), |(verb, sum, all), (amount, late)| {
                        (verb, sum + u64::from(amount), all + i64::from(late))
                    })
            }
        };
        let mut text: SmallVec<[u8; 39]> = SmallVec::new();
        text.extend([verb, u8::from(self.on_end == OnEnd::Capture)]);
        // The first bytes differ most, which makes ids quick to find.
        text.extend((self.id / BLOCK).to_le_bytes());
        text.extend(mask.to_be_bytes());
        text.push(1 + others.len() as u8);
        text.extend(amount.to_be_bytes());
        text.extend(other.to_be_bytes());
        if others.len() > 0 {
            text.extend(
                captures
                    .flat_map(|(amount, late)| [amount, late])
                    .flat_map(u32::to_be_bytes),
            );
        }
        call.bytes(Arc::from(&*text));
    }

    /// Changes the bucket. Returns the outcome, the amount of the hold, and whether anything changed.
    fn run(&self, bucket: &mut Bucket, now: i64) -> (Outcome, i64, bool) {
        match (self.verb, bucket.find_hold(self.id)) {
            (Verb::Authorize { amount, ttl } | Verb::Extend { amount, ttl }, Some(at)) => {
                self.raise(bucket, now, at, amount.into(), ttl)
            }
            (Verb::Extend { .. }, None) => (Outcome::Ended, 0, false),
            (Verb::Authorize { amount, ttl }, None) => self.begin(bucket, now, amount.into(), ttl),
            (Verb::Capture { amount, .. }, Some(at)) => {
                let held = bucket.remove_hold(at);
                bucket.capture(&self.quotas, now, amount.into());
                (Outcome::Held, held, true)
            }
            (Verb::Capture { late, .. }, None) => {
                bucket.capture(&self.quotas, now, late.into());
                (Outcome::Ended, 0, late > 0)
            }
        }
    }

    /// Raises the hold at a position to at least `amount`, if the tokens are available.
    fn raise(
        &self,
        bucket: &mut Bucket,
        now: i64,
        at: usize,
        amount: i64,
        ttl: i64,
    ) -> (Outcome, i64, bool) {
        let amount_of = |bucket: &Bucket| {
            let holds = bucket.holds.as_ref();
            holds.map_or(0, |holds| holds.each[at].amount)
        };
        if !self.has(bucket, now, amount - amount_of(bucket)) {
            return (Outcome::Refused, amount_of(bucket), false);
        }
        let changed = bucket.raise_hold(at, amount, now + ttl);
        (Outcome::Held, amount_of(bucket), changed)
    }

    /// Adds the hold, if the tokens are available.
    fn begin(&self, bucket: &mut Bucket, now: i64, amount: i64, ttl: i64) -> (Outcome, i64, bool) {
        if !self.has(bucket, now, amount) {
            return (Outcome::Refused, 0, false);
        }
        let holds = bucket.holds.as_ref();
        if holds.is_some_and(|holds| holds.each.len() >= MOST) {
            return (Outcome::Full, 0, false);
        }
        bucket.add_hold(Record {
            id: self.id,
            amount,
            end: now + ttl,
            on_end: self.on_end,
        });
        (Outcome::Held, amount, true)
    }

    /// Whether this number of additional tokens is available.
    fn has(&self, bucket: &Bucket, now: i64, more: i64) -> bool {
        let ask = Ask {
            cost: more,
            wait: 0,
        };
        more <= 0 || bucket.has(&self.quotas, now, ask)
    }

    /// Whether it only begins a hold: other steps renew or end one.
    fn authorizes(&self) -> bool {
        matches!(self.verb, Verb::Authorize { .. })
    }

    /// Captures run first: they release tokens for the authorizations.
    fn rank(&self) -> (u8, u128) {
        let verb = match self.verb {
            Verb::Capture { .. } => 0,
            Verb::Extend { .. } => 1,
            Verb::Authorize { .. } => 2,
        };
        (verb, self.id)
    }

    fn repeats(&self, next: &Self) -> bool {
        let is_equal = match (self.verb, next.verb) {
            (Verb::Capture { .. }, Verb::Capture { .. }) => true,
            (verb, other) => verb == other && self.on_end == next.on_end,
        };
        is_equal && self.id / BLOCK == next.id / BLOCK && self.id < next.id
    }

    fn decode(self, now: i64, mut fields: Fields<'_>) -> Result<HoldReply, Garbled> {
        let mut fields = match fields.next()? {
            Field::Integer(-1) => return Err(WRONG_TYPE),
            Field::List(fields) => fields,
            _ => return Err(Garbled("a script returned a value that is not a list")),
        };
        let (outcome, amount) = match (fields.next()?, fields.integer()?) {
            (Field::Integer(outcome), amount) => (outcome, amount),
            (Field::Text(answers), _) => {
                let answer = answers.chunks_exact(ANSWER).nth((self.id % BLOCK) as usize);
                let Some([outcome, amount @ ..]) =
                    answer.and_then(|answer| answer.first_chunk::<ANSWER>())
                else {
                    return Err(Garbled("a script returned too few answers"));
                };
                ((*outcome).into(), u32::from_be_bytes(*amount).into())
            }
            _ => return Err(Garbled("a script returned a list instead of an outcome")),
        };
        let outcome = match outcome {
            0 => Outcome::Refused,
            1 => Outcome::Held,
            2 => Outcome::Ended,
            3 => Outcome::Full,
            _ => return Err(Garbled("a script returned an outcome that is unknown")),
        };
        let mut bucket = read_bucket(&self.quotas, now, &mut fields)?;
        bucket.read_held(&mut fields)?;
        Ok(self.reply(outcome, amount, now, bucket))
    }

    pub(crate) fn apply(self, bucket: &mut Bucket, now: i64) -> HoldReply {
        let moved = bucket.sweep(now) | bucket.set_back(now);
        // A state is written with its calendar quotas in their current windows.
        if bucket.fits_in_place(&self.quotas) && !self.quotas.have_windows() {
            let (outcome, amount, changed) = self.run(bucket, now);
            if changed || moved {
                bucket.written(now);
            }
            return self.reply(outcome, amount, now, bucket.snapshot());
        }
        let (mut fitted, is_new) = bucket.fitted(&self.quotas, now);
        let (outcome, amount, changed) = self.run(&mut fitted, now);
        if changed || is_new || moved {
            bucket.write(&fitted, now);
        }
        self.reply(outcome, amount, now, fitted.snapshot())
    }
}

impl HoldReply {
    /// The step that releases the hold, if it was authorized.
    pub(crate) fn release(&self) -> Option<HoldStep> {
        let id = self.authorized.filter(|_| self.outcome == Outcome::Held)?;
        Some(HoldStep {
            quotas: self.state.quotas.clone(),
            id,
            on_end: OnEnd::Release,
            verb: Verb::RELEASE,
        })
    }
}

/// Steps on the holds of a request: one for each limit, in the order of the limits.
#[derive(Clone, Debug)]
pub(crate) struct HoldSteps {
    pub(crate) each: SmallVec<[HoldStep; 1]>,
    /// The quotas of the limits, if they are charged together.
    pub(crate) terms: Option<Arc<JoinedTerms>>,
    /// Whether the step is done for all limits or for none. Otherwise it is done for each limit alone.
    pub(crate) all_or_none: bool,
}

/// The result for each hold. If an all-or-none step was not possible for one limit, the states are those without the
/// step.
#[derive(Debug)]
pub(crate) struct HoldReplies {
    pub(crate) each: SmallVec<[HoldReply; 1]>,
    terms: Option<Arc<JoinedTerms>>,
}

impl HoldSteps {
    /// The step of one limit alone.
    pub(crate) fn one(step: HoldStep) -> Self {
        Self {
            each: SmallVec::from_buf([step]),
            terms: None,
            all_or_none: false,
        }
    }
}

impl HoldReplies {
    /// The reply to the step of one limit alone.
    pub(crate) fn one(mut self) -> HoldReply {
        self.each.remove(0)
    }

    /// Whether all are held.
    pub(crate) fn is_held(&self) -> bool {
        self.each.iter().all(|reply| reply.outcome == Outcome::Held)
    }

    /// The position of the first limit with this outcome.
    pub(crate) fn first(&self, outcome: Outcome) -> Option<usize> {
        self.each.iter().position(|reply| reply.outcome == outcome)
    }
}

impl Operation for HoldSteps {
    type Cell = Bucket;
    type Reply = HoldReplies;
    // Only an authorization whose caller was dropped is undone.
    type Undo = Self;
    const SCRIPT: Script = HOLD;
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_SLOW_RUNS;
    const MOST_REPEATS: usize = BLOCK as usize;
    const SAME_ONCE: bool = false;
    const UNDONE_ALONE: bool = true;

    fn is_reserved(&self) -> bool {
        !self.each.iter().any(HoldStep::authorizes)
    }

    fn group(&self) -> Option<u128> {
        let quotas = match &self.terms {
            Some(terms) => &terms.all,
            None => &self.each.first()?.quotas,
        };
        Some(quotas.id() as u128)
    }

    fn most_runs(&self) -> usize {
        let terms = self.terms.as_ref();
        terms.map_or(MOST_SLOW_RUNS, |terms| {
            (MOST_SLOW_RUNS / terms.all.limits().len()).max(1)
        })
    }

    fn rank(&self) -> (u8, u128) {
        self.each.first().map_or((0, 0), HoldStep::rank)
    }

    /// Only steps of one limit alone are one run.
    fn repeats(&self, next: &Self) -> bool {
        let mut pairs = self.each.iter().zip(&next.each);
        self.terms.is_none() && pairs.all(|(step, next)| step.repeats(next))
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        write_limits(self.each.iter().map(|step| &step.quotas), call);
    }

    fn own_run<'a>(
        &'a self,
        others: impl ExactSizeIterator<Item = &'a Self> + Clone,
        call: &mut Arguments<'_>,
    ) {
        call.integer(self.all_or_none.into());
        for (limit, step) in self.each.iter().enumerate() {
            let others = others.clone().map(move |other| &other.each[limit]);
            step.write(others, call);
        }
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<HoldReplies, Garbled> {
        let steps = self.each.into_iter();
        let each = steps.map(|step| step.decode(now, fields.one()?));
        Ok(HoldReplies {
            each: each.collect::<Result<_, _>>()?,
            terms: self.terms,
        })
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> HoldReplies {
        self.apply_to_each(slice::from_mut(bucket), now)
    }

    fn apply_to_each(self, buckets: &mut [Bucket], now: i64) -> HoldReplies {
        let Self {
            each,
            terms,
            all_or_none,
        } = self;
        let before = all_or_none.then(|| (buckets.to_vec(), each.clone()));
        let steps = buckets.iter_mut().zip(each);
        let mut reply = HoldReplies {
            each: steps
                .map(|(bucket, step)| step.apply(bucket, now))
                .collect(),
            terms,
        };
        let Some((before, steps)) = before.filter(|_| !reply.is_held()) else {
            return reply;
        };
        buckets.clone_from_slice(&before);
        for ((bucket, step), reply) in buckets.iter_mut().zip(steps).zip(&mut reply.each) {
            // A step that changes nothing.
            let nothing = HoldStep {
                verb: Verb::Extend { amount: 0, ttl: 0 },
                ..step
            };
            reply.state = nothing.apply(bucket, now).state;
        }
        reply
    }

    fn undo(replies: &[HoldReplies]) -> Option<Self> {
        // Each reply is undone alone.
        let [HoldReplies { each, terms }] = replies else {
            return None;
        };
        Some(Self {
            each: each.iter().map(HoldReply::release).collect::<Option<_>>()?,
            terms: terms.clone(),
            all_or_none: false,
        })
    }
}
