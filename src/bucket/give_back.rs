//! Gives tokens of a charge back (`lua/cancel.lua` in Rust). The next request for the key waits until the tokens are
//! back, so that the charge does not cause its refusal.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::watch;

use crate::bucket::Bucket;
use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::level::{Level, Moment};
use crate::bucket::quota::{Limit, Pace};
use crate::bucket::quotas::Quotas;
use crate::bucket::wire::{BUCKETS, MOST_SLOW_RUNS, PARTS, read_count, write_limits};
use crate::key::Key;
use crate::store::operation::{Arguments, Fields, Garbled, Operation, Repeat, Script, function};
use crate::store::timer::within;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, lock};

/// Gives back tokens of a charge: to each limit that was charged.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct GiveBack {
    pub(crate) each: SmallVec<[Refund; 1]>,
    /// Dropped when the operation is complete or has failed.
    pub(crate) _returning: Option<Arc<Return>>,
}

/// The tokens that one limit gets back.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Refund {
    pub(crate) quotas: Quotas,
    pub(crate) cost: i64,
    pub(crate) rule: Rule,
    traces: SmallVec<[Trace; 1]>,
}

/// The tokens of a charge that are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The tokens on which no later reservation depends, until the time `act`, when the request acts. No tokens if the
    /// clock is before `since`: then it was set back after the charge, and the times of the charge do not match the
    /// state.
    ActsAt { act: i64, since: i64 },
    /// All of them if nothing was charged after them, otherwise none. The request never acts.
    IfLatest,
    /// All tokens minus those that were refilled since the charge: without the charge, the bucket might have been full,
    /// and the refill would have been lost. No tokens while a reservation has not acted yet.
    Unused {
        /// The time of the charge, by the server's clock, and the maximum time since the charge, by this process's
        /// clock. Both are in µs. There are two clocks because the server's clock may be set back.
        charged: i64,
        age: i64,
    },
}

impl Rule {
    /// For a reservation that is at least `age` µs old, by the clock of this process, which is never set back.
    pub(crate) fn acts_at(decision: &Decision, age: i64) -> Self {
        // A clock that is corrected by running slower was not set back: chrony slows it by up to a twelfth. After a
        // step of less than 1 ms, only few tokens are given back in excess.
        let since = decision.state.now + age - age / 8 - 1000;
        Self::ActsAt {
            act: decision.act(),
            since: since.max(1),
        }
    }
}

/// The effect of a charge on one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The TAT after the charge. For a quota that counts used tokens: their number, or [`KEPT`](Self::KEPT).
    tat: Moment,
    /// The latest TAT of the reservations that were pending before the charge. For a calendar quota: the window in
    /// which the charge was made.
    before: Moment,
}

impl Trace {
    /// For a quota that never refills: the tokens are not given back.
    const KEPT: Moment = Moment {
        whole: -1,
        part: -1,
    };
}

impl Level {
    /// Returns whether anything was given back.
    fn cancel(
        &mut self,
        pace: &Pace,
        now: i64,
        (cost, held): (i64, i64),
        rule: Rule,
        trace: &Trace,
    ) -> bool {
        let mine = trace.tat;
        if pace.num == 0 {
            let used = self.tat.whole;
            if mine.whole >= 0 && self.can_give_back(mine, trace.before) {
                self.tat.whole = (used - cost).max(0);
            }
            return self.tat.whole < used;
        }
        let charge = Moment::default().advance(pace, cost);
        let back = match rule {
            Rule::Unused { charged, age } => {
                let was_reset = self.tat < mine;
                let held = Moment::default().advance(pace, held);
                let is_pending = self.tat.max(self.last).whole > now + pace.span - held.whole;
                if was_reset || is_pending {
                    return false;
                }
                Moment {
                    whole: charge.whole - age.max(now - charged),
                    ..charge
                }
            }
            Rule::IfLatest if !(self.tat == mine && self.last == mine && mine.whole > now) => {
                return false;
            }
            Rule::IfLatest | Rule::ActsAt { .. } => {
                let built_upon = self.last.minus(pace, mine);
                if built_upon == Moment::default() {
                    self.last = mine.minus(pace, charge).max(trace.before);
                    if self.tat < mine {
                        // Other charges were cancelled before. A request that came after them may still act up to this
                        // time.
                        self.last = self.last.max(self.tat);
                    }
                }
                charge.minus(pace, built_upon)
            }
        };
        if back <= Moment::default() {
            return false;
        }
        self.tat = self.tat.minus(pace, back);
        if matches!(rule, Rule::Unused { .. }) {
            self.last = self.tat;
        }
        true
    }
}

impl GiveBack {
    pub(crate) fn of(each: SmallVec<[Refund; 1]>) -> Self {
        Self {
            each,
            _returning: None,
        }
    }

    /// Gives back `cost` tokens of a charge that resulted in `state`.
    pub(crate) fn new(state: &BucketState, cost: i64, rule: Rule) -> Self {
        let refund = Refund::new(&state.quotas, &state.bucket, cost, rule);
        Self::of(SmallVec::from_iter([refund]))
    }

    /// Gives back tokens that were charged at most `age` µs ago and are not used.
    pub(crate) fn unused(state: &BucketState, tokens: i64, age: i64) -> Self {
        Self::new(
            state,
            tokens,
            Rule::Unused {
                charged: state.now,
                age: age.max(0),
            },
        )
    }

    /// Takes back an admission whose request never acts. It is safe to run twice, because the second run finds a later
    /// change. A quota that never refills cannot detect this, so its tokens are not given back.
    pub(crate) fn safe_to_repeat(state: &BucketState, cost: i64) -> Self {
        let mut refund = Refund::new(&state.quotas, &state.bucket, cost, Rule::IfLatest);
        for (trace, limit) in refund.traces.iter_mut().zip(state.quotas.limits()) {
            if limit.num == 0 {
                trace.tat = Trace::KEPT;
            }
        }
        Self::of(SmallVec::from_iter([refund]))
    }
}

impl Refund {
    /// Gives back `cost` tokens of a charge after which the bucket was in the state `after`.
    fn new(quotas: &Quotas, after: &Bucket, cost: i64, rule: Rule) -> Self {
        // A bucket may have more levels, from other quotas.
        let traces = after.pairs(quotas).map(|(level, _)| Trace {
            tat: level.tat,
            before: level.before,
        });
        Self {
            quotas: quotas.clone(),
            cost,
            rule,
            traces: traces.collect(),
        }
    }

    /// Takes back `count` charges of `cost` in a row, whose requests never act, as one charge: with the TAT after the
    /// last charge, and the state before the first.
    pub(crate) fn combined(
        quotas: &Quotas,
        first: &Bucket,
        last: &Bucket,
        cost: i64,
        count: usize,
    ) -> Self {
        let mut refund = Self::new(quotas, last, cost * count as i64, Rule::IfLatest);
        for (trace, level) in refund.traces.iter_mut().zip(&first.levels) {
            trace.before = level.before;
        }
        refund
    }

    fn write(&self, call: &mut Arguments<'_>) {
        let (at, age) = match self.rule {
            Rule::ActsAt { act, since } => (act, -since),
            Rule::IfLatest => (-1, -1),
            Rule::Unused { charged, age } => (charged, age),
        };
        for number in [self.cost, at, age] {
            call.integer(number);
        }
        for Trace { tat, before } in &self.traces {
            for part in [tat.whole, tat.part, before.whole, before.part] {
                call.integer(part);
            }
        }
    }

    /// Returns whether anything was given back.
    fn apply(&self, bucket: &mut Bucket, now: i64) -> bool {
        let Self {
            quotas,
            cost,
            rule,
            traces,
        } = self;
        let swept = bucket.sweep(now);
        let (mut after, is_new) = bucket.fitted(quotas, now);
        // The charge is unknown if the bucket was reset since, or has no level for these quotas.
        let is_unknown = |((level, limit), trace): ((&Level, &Limit), &Trace)| {
            limit.num != 0 && trace.tat > level.last
        };
        let is_over = match *rule {
            Rule::ActsAt { act, since } if now > act || now < since => true,
            Rule::Unused { .. } => false,
            Rule::ActsAt { .. } | Rule::IfLatest => after.pairs(quotas).zip(traces).any(is_unknown),
        };
        let mut given = false;
        let held = after.held();
        let traces = if is_new || is_over { &[] } else { &traces[..] };
        for ((level, limit), trace) in after.levels.iter_mut().zip(quotas.limits()).zip(traces) {
            given |= level.cancel(limit, now, (*cost, held), *rule, trace);
        }
        if given || swept {
            bucket.write(&after, now);
        }
        given
    }
}

impl Operation for GiveBack {
    type Cell = Bucket;
    /// Whether anything was given back.
    type Reply = bool;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "cancel"; BUCKETS, &["cancel"]);
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;
    // In order, so that no charge that is given back later depends on one given back earlier.
    const IN_ORDER: bool = true;
    const MOST_RUNS: usize = MOST_SLOW_RUNS;
    const SAME_ONCE: bool = false;

    fn group(&self) -> Option<u128> {
        match &self.each[..] {
            [refund] => Some(refund.quotas.id() as u128),
            _ => Some(0),
        }
    }

    fn most_runs(&self) -> usize {
        // The quotas of several limits are not compared.
        match &self.each[..] {
            [_] => MOST_SLOW_RUNS,
            _ => 1,
        }
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        write_limits(self.each.iter().map(|refund| &refund.quotas), call);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        self.each.iter().for_each(|refund| refund.write(call));
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<bool, Garbled> {
        let mut given = false;
        for _ in &self.each {
            given |= read_count(&mut fields)? == 1;
        }
        Ok(given)
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> bool {
        self.apply_to_each(slice::from_mut(bucket), now)
    }

    fn apply_to_each(self, buckets: &mut [Bucket], now: i64) -> bool {
        let each = buckets.iter_mut().zip(&self.each);
        each.fold(false, |given, (bucket, refund)| {
            given | refund.apply(bucket, now)
        })
    }
}

/// The maximum wait. The task that gives tokens back may be in a runtime that does not run.
const LONGEST: Duration = Duration::from_secs(1);

/// The keys of one namespace. Cloning is cheap.
#[derive(Clone, Default)]
pub(crate) struct Returning(Arc<Keys>);

#[derive(Default)]
struct Keys {
    /// The number of operations in progress, usually zero.
    count: AtomicUsize,
    under_way: Mutex<HashMap<Key, HoldsUnderWay>>,
}

/// The operations in progress for one key.
struct HoldsUnderWay {
    count: usize,
    over: watch::Sender<()>,
}

/// An operation in progress, until this is dropped.
pub(crate) struct Return {
    keys: Arc<Keys>,
    key: Key,
}

impl Returning {
    pub(crate) fn begin(&self, key: &Key) -> Return {
        let mut under_way = lock(&self.0.under_way);
        let new = || HoldsUnderWay {
            count: 0,
            over: watch::Sender::new(()),
        };
        under_way.entry(key.clone()).or_insert_with(new).count += 1;
        self.0.count.fetch_add(1, Ordering::Release);
        Return {
            keys: Arc::clone(&self.0),
            key: key.clone(),
        }
    }

    /// Waits for the operations in progress for a key; `None` if there are none.
    pub(crate) fn end(&self, key: &Key) -> Option<impl Future<Output = ()> + Send + use<>> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut over = lock(&self.0.under_way).get(key)?.over.subscribe();
        // Nothing is ever sent. The wait ends when the sender is dropped.
        Some(async move {
            within(LONGEST, over.changed()).await;
        })
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        let mut under_way = lock(&self.keys.under_way);
        if let Some(entry) = under_way.get_mut(&self.key) {
            entry.count -= 1;
            if entry.count == 0 {
                under_way.remove(&self.key);
            }
        }
        self.keys.count.fetch_sub(1, Ordering::Release);
    }
}

debug!(Returning);

debug!(Return);
