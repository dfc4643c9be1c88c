//! Charges a request to one limit, or to one to eight limits that are charged together: all of them, or none. It is
//! `lua/reserve.lua` in Rust.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::bucket::decision::{BucketState, Decision, Refuser, micros};
use crate::bucket::give_back::{Cancel, CancelAll};
use crate::bucket::quota::MOST_REPEATS;
use crate::bucket::quotas::Quotas;
use crate::bucket::wire::{
    MOST_RUNS, OUT_OF_RANGE, PARTS, RESERVE, charged, read_bucket, read_count, under_its_quotas,
    write_limits,
};
use crate::bucket::{Ask, Bucket, Buckets};
use crate::store::operation::{
    Arguments, Cell as _, Fields, Garbled, Operation, Repeat, Script, packed,
};

/// Charges a request completely, or not at all.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Reserve {
    pub(crate) quotas: Quotas,
    pub(crate) ask: Ask,
}

impl Operation for Reserve {
    under_its_quotas!();
    type Reply = Decision;
    type Undo = Cancel;
    const SCRIPT: Script = RESERVE;
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_RUNS;
    const MOST_REPEATS: usize = MOST_REPEATS;

    fn repeats(&self, other: &Self) -> bool {
        // Equal requests that wait may act in different windows of a calendar quota.
        self.ask == other.ask && (self.ask.wait == 0 || !self.quotas.have_windows())
    }

    fn own(&self, count: usize, call: &mut Arguments<'_>) {
        call.numbers([count as i64, self.ask.wait, self.ask.cost]);
    }

    fn decode(self, nth: usize, now: i64, mut fields: Fields<'_>) -> Result<Decision, Garbled> {
        let nth = nth as i64;
        // A reply without numbers means: the bucket was full, and all requests are admitted.
        let (admitted, before) = match fields.len() {
            0 => (nth + 1, Bucket::full(&self.quotas)),
            _ => (
                read_count(&mut fields)?,
                read_bucket(&self.quotas, now, &mut fields)?,
            ),
        };
        let bucket = charged(before, &self.quotas, now, (self.ask.cost, admitted, nth));
        let wait = micros(self.ask.wait);
        Some(self.decision(nth < admitted, now, bucket))
            .filter(|decision| decision.delay() <= wait)
            .ok_or(OUT_OF_RANGE)
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> Decision {
        let changed = bucket.sweep(now) | bucket.set_back(now);
        if bucket.fits_in_place(&self.quotas) {
            let admitted = bucket.take(&self.quotas, now, self.ask);
            let after = bucket.snapshot();
            if admitted {
                bucket.written(now);
            }
            return self.decision(admitted, now, after);
        }
        // A refusal leaves the bucket unchanged, because the script writes nothing then. But a new quota is stored, and
        // refills from now on. A state that was moved because the clock was set back is stored too.
        let (mut after, is_new) = bucket.fitted(&self.quotas, now);
        let admitted = after.take(&self.quotas, now, self.ask);
        if admitted || is_new || changed {
            bucket.write(&after, now);
        }
        self.decision(admitted, now, after)
    }

    fn undo(decisions: &[Decision]) -> Option<Cancel> {
        let count = decisions
            .iter()
            .take_while(|decision| decision.admitted)
            .count();
        let first = decisions.first()?;
        let last = decisions[..count].last()?;
        Some(Cancel::combined(
            &first.state,
            &last.state,
            last.cost.into(),
            count,
        ))
    }
}

impl Reserve {
    /// Like [`apply`](Operation::apply), for callers that do not read the decision on an admission. `None`: the request
    /// is admitted.
    pub(crate) fn admit(
        quotas: &Quotas,
        ask: Ask,
        bucket: &mut Bucket,
        now: i64,
    ) -> Option<Decision> {
        // An unused bucket has no holds to end and no earlier times.
        let is_unused = bucket.levels.is_empty() && bucket.is_idle(now);
        if is_unused {
            *bucket = Bucket::full(quotas).in_windows_of(now);
        }
        if is_unused || bucket.fits_in_place(quotas) {
            if !is_unused {
                bucket.sweep(now);
                bucket.set_back(now);
            }
            if bucket.take(quotas, now, ask) {
                bucket.written(now);
                return None;
            }
        }
        let decision = Self {
            quotas: quotas.clone(),
            ask,
        }
        .apply(bucket, now);
        (!decision.admitted).then_some(decision)
    }

    fn decision(self, admitted: bool, now: i64, bucket: Bucket) -> Decision {
        let state = BucketState {
            quotas: self.quotas,
            now,
            bucket,
        };
        Decision::new(self.ask.cost, admitted, state)
    }
}

/// The cost of a request for each of `N` limits, in their order: a `u32` for all of them, or `[u32; N]`.
///
/// ```
/// use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let store = Store::in_memory();
/// let limits = TokenBuckets::new([
///     TokenBucket::new(&store, "requests", Quota::per_minute(60))?,
///     TokenBucket::new(&store, "bytes", Quota::per_minute(1_000_000))?,
/// ])?;
/// let decision = limits.allow_n(["ann", "ann"], [1, 20_000]).await?;
/// let left: Vec<_> = decision.state.balances().map(|balance| balance.remaining).collect();
/// assert_eq!(left, [59, 980_000]);
/// # Ok(()) }
/// ```
pub trait Costs<const N: usize> {
    /// Returns the cost for each limit, in tokens.
    fn each(self) -> [u32; N];
}

impl<const N: usize> Costs<N> for u32 {
    fn each(self) -> [u32; N] {
        [self; N]
    }
}

impl<const N: usize> Costs<N> for [u32; N] {
    fn each(self) -> [u32; N] {
        self
    }
}

/// The maximum number of limits.
pub(crate) const MOST_LIMITS: usize = 8;

/// The costs of a request, in the order of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Price {
    Same(u32),
    Each([u32; MOST_LIMITS]),
}

impl Price {
    pub(crate) fn new(costs: impl IntoIterator<Item = u32>) -> Self {
        let mut each = [0; MOST_LIMITS];
        let mut count = 0;
        for (place, cost) in each.iter_mut().zip(costs) {
            *place = cost;
            count += 1;
        }
        match each[..count].iter().all(|cost| *cost == each[0]) {
            true => Self::Same(each[0]),
            false => Self::Each(each),
        }
    }

    /// The cost for the limit at this position.
    pub(crate) fn of(self, limit: usize) -> u32 {
        match self {
            Self::Same(cost) => cost,
            Self::Each(costs) => costs.get(limit).copied().unwrap_or(0),
        }
    }

    /// The largest cost.
    pub(crate) fn most(self) -> u32 {
        match self {
            Self::Same(cost) => cost,
            Self::Each(costs) => costs.into_iter().fold(0, u32::max),
        }
    }

    /// The number of costs for this number of limits.
    pub(crate) fn count(self, limits: usize) -> usize {
        if matches!(self, Self::Same(_)) {
            1
        } else {
            limits
        }
    }
}

/// The quotas of several limits, in the order of the limits.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) each: Box<[Quotas]>,
    /// The same quotas, with the names of a decision that contains only one limit.
    pub(crate) alone: Box<[Quotas]>,
    /// All quotas, joined as the quotas of one limit.
    pub(crate) all: Quotas,
}

impl Terms {
    /// The terms of limits with these names and quotas.
    pub(crate) fn new<'a>(limits: impl Iterator<Item = (&'a str, &'a Quotas)> + Clone) -> Self {
        Self {
            each: limits.clone().map(|(_, quotas)| quotas.clone()).collect(),
            alone: limits
                .clone()
                .map(|limit| Quotas::joined([limit].into_iter()))
                .collect(),
            all: Quotas::joined(limits),
        }
    }
}

/// The maximum number of requests in one call, if each has up to three quotas: about 0.5 ms of server time. With
/// more quotas, the maximum is lower.
const MOST_RUNS_TOGETHER: usize = 40;

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

impl Operation for ReserveAll {
    type Cell = Buckets;
    type Reply = Decided;
    type Undo = CancelAll;
    const SCRIPT: Script = RESERVE;
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_RUNS_TOGETHER;
    const MOST_REPEATS: usize = MOST_REPEATS;

    fn group(&self) -> Option<u128> {
        // Requests with a cost for each limit have more arguments.
        let is_each = matches!(self.price, Price::Each(_));
        Some((self.terms.all.id() as u128) << 1 | u128::from(is_each))
    }

    fn most_runs(&self) -> usize {
        (3 * MOST_RUNS_TOGETHER / self.terms.all.limits().len()).clamp(1, MOST_RUNS_TOGETHER)
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
        // A reply without numbers means: the only bucket was full, and all requests are admitted.
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
        let first = replies.first()?;
        let last = replies[..count].last()?;
        let states = first.states.iter().zip(&last.states).enumerate();
        let cancels = states.map(|(limit, (first, state))| {
            Cancel::combined(first, state, last.price.of(limit).into(), count)
        });
        Some(CancelAll(cancels.collect()))
    }
}

impl Decided {
    /// The decision for the caller.
    pub(crate) fn decision(&self) -> Decision {
        let mut refused =
            (0..self.states.len()).filter(|limit| !self.admitted && !self.has(*limit));
        self.decision_by(refused.next())
    }

    /// The decision, if the limit at this position refused the request.
    pub(crate) fn decision_by(&self, refused: Option<usize>) -> Decision {
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
                // Held tokens count as used.
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
    pub(crate) fn has(&self, limit: usize) -> bool {
        let state = &self.states[limit];
        let cost = self.price.of(limit).into();
        state
            .bucket
            .has(&state.quotas, state.now, Ask { cost, wait: 0 })
    }
}
