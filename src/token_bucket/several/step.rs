//! Charges several buckets in one operation, all or none (`lua/reserve.lua` in Rust), and takes
//! such a charge back.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Price, Terms};
use crate::store::{Arguments, Cell, Fields, Garbled, Operation, Repeat, Script, packed};
use crate::token_bucket::bucket_state::BucketState;
use crate::token_bucket::cancel::Cancel;
use crate::token_bucket::decision::{Decision, Refuser};
use crate::token_bucket::operations::{
    PARTS, RESERVE, charged, read_bucket, read_count, write_limits,
};
use crate::token_bucket::quota::{MOST_REPEATS, Quotas};
use crate::token_bucket::state::{Ask, Bucket};

/// The maximum number of requests in one call, if each has up to three quotas: about 0.5 ms of server time. With
/// more quotas, the maximum is lower.
const MOST_RUNS: usize = 40;

/// The states of several buckets, in the order of the limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Buckets(pub(crate) SmallVec<[Bucket; 3]>);

/// Charges a request to all buckets, or to none.
#[derive(Clone, Debug)]
pub(crate) struct ReserveAll {
    pub(crate) terms: Arc<Terms>,
    /// At least one token of each limit.
    pub(crate) price: Price,
}

/// The result of a request.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) terms: Arc<Terms>,
    pub(crate) price: Price,
    pub(crate) admitted: bool,
    /// One state per limit, after the decision.
    pub(crate) states: SmallVec<[BucketState; 3]>,
}

/// Takes back the charge of a request that never acts, for each bucket in which nothing was charged after it.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct CancelAll(SmallVec<[Cancel; 3]>);

impl Cell for Buckets {
    fn is_idle(&self, now: i64) -> bool {
        self.0.iter().all(|bucket| bucket.is_idle(now))
    }
}

impl Operation for ReserveAll {
    type Cell = Buckets;
    type Reply = Decided;
    type Undo = CancelAll;
    const SCRIPT: Script = RESERVE;
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_RUNS;
    const MOST_REPEATS: usize = MOST_REPEATS;

    fn group(&self) -> Option<u128> {
        // Requests with a cost for each limit have more arguments.
        let is_each = matches!(self.price, Price::Each(_));
        Some((self.terms.all.id() as u128) << 1 | u128::from(is_each))
    }

    fn most_runs(&self) -> usize {
        (3 * MOST_RUNS / self.terms.all.limits().len()).clamp(1, MOST_RUNS)
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        write_limits(self.terms.each.iter(), call);
    }

    fn repeats(&self, other: &Self) -> bool {
        self.price == other.price
    }

    fn own(&self, count: usize, call: &mut Arguments<'_>) {
        let costs = (0..self.price.count(self.terms.each.len()))
            .map(|limit| i64::from(self.price.of(limit)));
        call.bytes(
            packed([count as i64, 0].into_iter().chain(costs))
                .as_slice()
                .into(),
        );
    }

    fn decode(self, nth: usize, now: i64, mut fields: Fields<'_>) -> Result<Decided, Garbled> {
        let nth = nth as i64;
        // Without numbers, all are admitted to the only bucket, which was full.
        let is_short = fields.len() == 0;
        let admitted = if is_short {
            nth + 1
        } else {
            read_count(&mut fields)?
        };
        let mut states = SmallVec::new();
        for (limit, quotas) in self.terms.each.iter().enumerate() {
            let before = if is_short {
                Bucket::full(quotas)
            } else {
                read_bucket(quotas, now, &mut fields)?
            };
            let bucket = charged(
                before,
                quotas,
                now,
                (self.price.of(limit).into(), admitted, nth),
            );
            states.push(BucketState {
                quotas: quotas.clone(),
                now,
                bucket,
            });
        }
        Ok(Decided {
            terms: self.terms,
            price: self.price,
            admitted: nth < admitted,
            states,
        })
    }

    fn apply(self, cells: &mut Buckets, now: i64) -> Decided {
        let Self { terms, price } = self;
        cells.0.resize(terms.each.len(), Bucket::default());
        let mut after: SmallVec<[(&Quotas, Bucket, bool); 3]> = SmallVec::new();
        for (bucket, quotas) in cells.0.iter_mut().zip(&terms.each) {
            let swept = bucket.sweep(now);
            let (bucket, is_new) = bucket.fitted(quotas, now);
            after.push((quotas, bucket, is_new || swept));
        }
        let ask = |limit| Ask {
            cost: price.of(limit).into(),
            wait: 0,
        };
        let mut each = after.iter().enumerate();
        let admitted = each.all(|(limit, (quotas, bucket, _))| bucket.has(quotas, now, ask(limit)));
        let mut states = SmallVec::new();
        for (limit, (cell, (quotas, mut bucket, is_new))) in
            cells.0.iter_mut().zip(after).enumerate()
        {
            if admitted {
                bucket.charge(quotas, now, price.of(limit).into());
            }
            // As in `Reserve`: a refusal leaves the bucket unchanged, except that new quotas are stored.
            if admitted || is_new {
                cell.write(&bucket, now);
            }
            states.push(BucketState {
                quotas: quotas.clone(),
                now,
                bucket,
            });
        }
        Decided {
            terms,
            price,
            admitted,
            states,
        }
    }

    fn undo(replies: &[Decided]) -> Option<CancelAll> {
        let count = replies
            .iter()
            .take_while(|decided| decided.admitted)
            .count();
        let (first, last) = (replies.first()?, replies[..count].last()?);
        let states = first.states.iter().zip(&last.states).enumerate();
        let cancels = states.map(|(limit, (first, state))| {
            Cancel::combined(first, state, last.price.of(limit).into(), count)
        });
        Some(CancelAll(cancels.collect()))
    }
}

impl Decided {
    /// The decision that the caller gets.
    pub(crate) fn decision(&self) -> Decision {
        let mut refused =
            (0..self.states.len()).filter(|limit| !self.admitted && !self.has(*limit));
        self.decision_by(refused.next())
    }

    /// The decision, in which the limit at a position has refused the request.
    pub(in crate::token_bucket) fn decision_by(&self, refused: Option<usize>) -> Decision {
        let now = self.states.first().map_or(0, |state| state.now);
        let mut bucket = Bucket::default();
        let mut refuser = None;
        for (limit, state) in self.states.iter().enumerate() {
            if refused == Some(limit) {
                let cost = self.price.of(limit).into();
                refuser = Some(Refuser::new(limit, bucket.levels.len(), state, cost));
            }
            // Converts all times to the time of the first state.
            let shift = now - state.now;
            bucket.blocked_until = bucket.blocked_until.max(state.bucket.blocked_until + shift);
            for (level, limit) in state.bucket.pairs(&state.quotas) {
                // What is held counts as used.
                let mut level = level.with_held(limit, state.now, state.bucket.held());
                if limit.num != 0 {
                    level.tat.whole += shift;
                    level.last.whole += shift;
                }
                bucket.levels.push(level);
            }
        }
        let state = BucketState {
            quotas: self.terms.all.clone(),
            now,
            bucket,
        };
        let cost = refused.map_or_else(|| self.price.most(), |limit| self.price.of(limit));
        Decision {
            by: refuser,
            costs: self.costs(),
            ..Decision::new(cost.into(), self.admitted, state)
        }
    }

    /// The cost for each quota, if the limits have different ones.
    fn costs(&self) -> Option<Arc<[u32]>> {
        let Price::Each(costs) = self.price else {
            return None;
        };
        let each = costs.into_iter().zip(&self.terms.each);
        Some(
            each.flat_map(|(cost, quotas)| quotas.limits().iter().map(move |_| cost))
                .collect(),
        )
    }

    /// Whether the limit at this position has the tokens.
    pub(super) fn has(&self, limit: usize) -> bool {
        let (state, cost) = (&self.states[limit], self.price.of(limit).into());
        state
            .bucket
            .has(&state.quotas, state.now, Ask { cost, wait: 0 })
    }
}

impl Operation for CancelAll {
    type Cell = Buckets;
    type Reply = ();
    type Undo = Self;
    const SCRIPT: Script = Cancel::SCRIPT;
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Cancel::REPEAT;
    const IN_ORDER: bool = Cancel::IN_ORDER;
    const SAME_ONCE: bool = Cancel::SAME_ONCE;

    fn shared(&self, call: &mut Arguments<'_>) {
        write_limits(self.0.iter().map(|cancel| &cancel.quotas), call);
    }

    fn own(&self, count: usize, call: &mut Arguments<'_>) {
        self.0.iter().for_each(|cancel| cancel.own(count, call));
    }

    fn decode(self, _: usize, _: i64, _: Fields<'_>) -> Result<(), Garbled> {
        Ok(())
    }

    fn apply(self, cells: &mut Buckets, now: i64) {
        for (bucket, cancel) in cells.0.iter_mut().zip(self.0) {
            cancel.apply(bucket, now);
        }
    }
}
