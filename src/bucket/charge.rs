//! Charges a request to one to eight limits: to all of them, or to none. It is `lua/reserve.lua` in Rust.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::{fmt, slice};

use smallvec::SmallVec;

use crate::bucket::decision::{BucketState, Decision, Refuser};
use crate::bucket::give_back::{GiveBack, Refund};
use crate::bucket::quota::MOST_REPEATS;
use crate::bucket::quotas::Quotas;
use crate::bucket::wire::{
    MOST_RUNS, OUT_OF_RANGE, PARTS, RESERVE, charged, read_bucket, read_count, write_limits,
};
use crate::bucket::{Ask, Bucket};
use crate::store::operation::{
    Arguments, Cell as _, Fields, Garbled, Operation, Repeat, Script, packed,
};

/// Charges a request to all of its limits, or to none.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) terms: Terms,
    /// At least one token of each limit.
    pub(crate) price: Price,
    /// The longest accepted delay, µs; 0 if there are several limits.
    pub(crate) wait: i64,
}

/// The quotas of the limits of a request.
#[derive(Clone, Debug)]
pub(crate) enum Terms {
    One(Quotas),
    All(Arc<JoinedTerms>),
}

/// The quotas of limits that are charged together, in the order of the limits.
#[derive(Debug)]
pub(crate) struct JoinedTerms {
    pub(crate) each: Box<[Quotas]>,
    /// The same quotas, with the names of a decision that contains only one limit.
    pub(crate) alone: Box<[Quotas]>,
    /// All quotas, joined as the quotas of one limit.
    pub(crate) all: Quotas,
}

/// The result of a request.
#[derive(Clone)]
pub(crate) struct Charged {
    pub(crate) terms: Terms,
    pub(crate) price: Price,
    pub(crate) admitted: bool,
    pub(crate) now: i64,
    /// The state for each limit, after the decision.
    pub(crate) buckets: SmallVec<[Bucket; 1]>,
}

/// The maximum number of requests in one call, if each has several limits with up to three quotas: about 0.5 ms of
/// server time. With more quotas, the maximum is lower.
const MOST_RUNS_TOGETHER: usize = 40;

impl Operation for Charge {
    type Cell = Bucket;
    type Reply = Charged;
    type Undo = GiveBack;
    const SCRIPT: Script = RESERVE;
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_RUNS;
    const MOST_REPEATS: usize = MOST_REPEATS;

    fn group(&self) -> Option<u128> {
        // Requests with a cost for each limit have more arguments.
        let is_each = matches!(self.price, Price::Each(_));
        Some((self.terms.id() as u128) << 1 | u128::from(is_each))
    }

    fn most_runs(&self) -> usize {
        match &self.terms {
            Terms::One(_) => MOST_RUNS,
            Terms::All(terms) => {
                (3 * MOST_RUNS_TOGETHER / terms.all.limits().len()).clamp(1, MOST_RUNS_TOGETHER)
            }
        }
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        write_limits(self.terms.each().iter(), call);
    }

    fn repeats(&self, other: &Self) -> bool {
        // Equal requests that wait may act in different windows of a calendar quota.
        let may_differ = || self.terms.each().iter().any(Quotas::have_windows);
        self.price == other.price && self.wait == other.wait && (self.wait == 0 || !may_differ())
    }

    fn own(&self, count: usize, call: &mut Arguments<'_>) {
        let count = count as i64;
        let each = match self.price {
            Price::Same(cost) => return call.numbers([count, self.wait, cost.into()]),
            Price::Each(each) => each.into_iter().take(self.terms.each().len()),
        };
        let numbers = [count, self.wait].into_iter().chain(each.map(i64::from));
        call.bytes(packed(numbers).as_slice().into());
    }

    fn decode(self, nth: usize, now: i64, mut fields: Fields<'_>) -> Result<Charged, Garbled> {
        let nth = nth as i64;
        // A reply without numbers means: the only bucket was full, and all requests are admitted.
        let is_short = fields.len() == 0;
        let admitted = if is_short {
            nth + 1
        } else {
            read_count(&mut fields)?
        };
        let mut buckets = SmallVec::new();
        for (limit, quotas) in self.terms.each().iter().enumerate() {
            let before = if is_short {
                Bucket::full(quotas)
            } else {
                read_bucket(quotas, now, &mut fields)?
            };
            let cost = self.price.of(limit).into();
            let bucket = charged(before, quotas, now, (cost, admitted, nth));
            if nth < admitted && bucket.act(quotas, now) > now + self.wait {
                return Err(OUT_OF_RANGE);
            }
            buckets.push(bucket);
        }
        Ok(self.charged(nth < admitted, now, buckets))
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> Charged {
        self.apply_to_each(slice::from_mut(bucket), now)
    }

    fn apply_to_each(self, stored: &mut [Bucket], now: i64) -> Charged {
        let mut admitted = true;
        // The states with the levels of the quotas first, and whether they must be stored; `None`: the stored state
        // has them first.
        let mut fitted: SmallVec<[Option<(Bucket, bool)>; 1]> = SmallVec::new();
        for (limit, (bucket, quotas)) in stored.iter_mut().zip(self.terms.each()).enumerate() {
            let changed = bucket.sweep(now) | bucket.set_back(now);
            let copy = (!bucket.fits_in_place(quotas)).then(|| {
                let (copy, is_new) = bucket.fitted(quotas, now);
                (copy, is_new || changed)
            });
            let bucket = copy.as_ref().map_or(&*bucket, |(copy, _)| copy);
            admitted = admitted && bucket.has(quotas, now, self.ask(limit));
            fitted.push(copy);
        }
        let mut buckets = SmallVec::new();
        let terms = stored.iter_mut().zip(self.terms.each());
        for (limit, ((bucket, quotas), copy)) in terms.zip(fitted).enumerate() {
            let cost = self.price.of(limit).into();
            let Some((mut copy, is_changed)) = copy else {
                if admitted {
                    bucket.charge(quotas, now, cost);
                }
                buckets.push(bucket.snapshot());
                if admitted {
                    bucket.written(now);
                }
                continue;
            };
            if admitted {
                copy.charge(quotas, now, cost);
            }
            // A refusal leaves the bucket unchanged, because the script writes nothing then. But a new quota is stored,
            // and refills from now on. A state that was moved because the clock was set back is stored too.
            if admitted || is_changed {
                bucket.write(&copy, now);
            }
            buckets.push(copy);
        }
        self.charged(admitted, now, buckets)
    }

    fn undo(replies: &[Charged]) -> Option<GiveBack> {
        let count = replies
            .iter()
            .take_while(|charged| charged.admitted)
            .count();
        let first = replies.first()?;
        let last = replies[..count].last()?;
        let each = last.terms.each().iter().enumerate().map(|(limit, quotas)| {
            let cost = last.price.of(limit).into();
            Refund::combined(
                quotas,
                &first.buckets[limit],
                &last.buckets[limit],
                cost,
                count,
            )
        });
        Some(GiveBack::of(each.collect()))
    }
}

impl Charge {
    /// Charges one limit.
    pub(crate) fn one(quotas: Quotas, cost: u32, wait: i64) -> Self {
        Self {
            terms: Terms::One(quotas),
            price: Price::Same(cost),
            wait,
        }
    }

    /// Like [`one`](Self::one) and [`apply`](Operation::apply), for callers that do not read the decision on an
    /// admission. `None`: the request is admitted.
    pub(crate) fn admit(
        quotas: &Quotas,
        cost: u32,
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
            let ask = Ask {
                cost: cost.into(),
                wait: 0,
            };
            if bucket.take(quotas, now, ask) {
                bucket.written(now);
                return None;
            }
        }
        let charged = Self::one(quotas.clone(), cost, 0).apply(bucket, now);
        (!charged.admitted).then(|| charged.decision())
    }

    fn ask(&self, limit: usize) -> Ask {
        Ask {
            cost: self.price.of(limit).into(),
            wait: self.wait,
        }
    }

    fn charged(self, admitted: bool, now: i64, buckets: SmallVec<[Bucket; 1]>) -> Charged {
        Charged {
            terms: self.terms,
            price: self.price,
            admitted,
            now,
            buckets,
        }
    }
}

impl Terms {
    /// The quotas of each limit.
    pub(crate) fn each(&self) -> &[Quotas] {
        match self {
            Self::One(quotas) => slice::from_ref(quotas),
            Self::All(terms) => &terms.each,
        }
    }

    /// Equal for equal quotas.
    pub(crate) fn id(&self) -> usize {
        match self {
            Self::One(quotas) => quotas.id(),
            Self::All(terms) => terms.all.id(),
        }
    }
}

impl JoinedTerms {
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

    /// The decision on a request for the tokens in `price`, with the states of all limits after it. `refused`: the
    /// position of the limit that refused it.
    pub(crate) fn decision(
        &self,
        price: Price,
        refused: Option<usize>,
        states: &[BucketState],
    ) -> Decision {
        let now = states.first().map_or(0, |state| state.now);
        let mut bucket = Bucket::default();
        let mut refuser = None;
        for (limit, state) in states.iter().enumerate() {
            if refused == Some(limit) {
                let cost = price.of(limit).into();
                refuser = Some(Refuser::new(limit, bucket.levels.len(), state, cost));
            }
            // Converts all times to the time of the first state.
            let shift = now - state.now;
            bucket.blocked_until = bucket.blocked_until.max(state.bucket.blocked_until + shift);
            for (level, limit) in state.bucket.pairs(&state.quotas) {
                // Held tokens count as used.
                let level = level.to_window_of(state.now);
                let mut level = level.with_held(limit, state.now, state.bucket.held());
                if limit.num != 0 {
                    level.tat.whole += shift;
                    level.last.whole += shift;
                }
                bucket.levels.push(level);
            }
        }
        let state = BucketState {
            quotas: self.all.clone(),
            now,
            bucket,
        };
        let cost = refused.map_or_else(|| price.most(), |limit| price.of(limit));
        Decision {
            by: refuser,
            costs: self.costs(price),
            ..Decision::new(cost.into(), refused.is_none(), state)
        }
    }

    /// The cost for each quota, if the limits have different ones.
    fn costs(&self, price: Price) -> Option<Arc<[u32]>> {
        let Price::Each(costs) = price else {
            return None;
        };
        let each = costs.into_iter().zip(&self.each);
        Some(
            each.flat_map(|(cost, quotas)| quotas.limits().iter().map(move |_| cost))
                .collect(),
        )
    }
}

impl Charged {
    /// The decision for the caller.
    pub(crate) fn decision(self) -> Decision {
        match self.terms {
            Terms::One(quotas) => {
                let state = BucketState {
                    quotas,
                    now: self.now,
                    bucket: self.buckets.into_iter().next().unwrap_or_default(),
                };
                Decision::new(self.price.most().into(), self.admitted, state)
            }
            Terms::All(ref terms) => {
                let refused = || (0..self.buckets.len()).find(|limit| !self.has(*limit));
                let refused = if self.admitted { None } else { refused() };
                let states: SmallVec<[_; 3]> = (0..self.buckets.len())
                    .map(|limit| self.state(limit))
                    .collect();
                terms.decision(self.price, refused, &states)
            }
        }
    }

    /// Whether the limit at this position has the tokens.
    pub(crate) fn has(&self, limit: usize) -> bool {
        let ask = Ask {
            cost: self.price.of(limit).into(),
            wait: 0,
        };
        self.buckets[limit].has(&self.terms.each()[limit], self.now, ask)
    }

    /// The state for the limit at this position, after the decision.
    pub(crate) fn state(&self, limit: usize) -> BucketState {
        BucketState {
            quotas: self.terms.each()[limit].clone(),
            now: self.now,
            bucket: self.buckets[limit].clone(),
        }
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clone().decision().fmt(f)
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
}
