//! Charging tokens ahead of the requests that will use them, and giving back what was not used: the steps of
//! `lua/token_bucket/prefetch.lua` and `give_back.lua`.

use std::sync::Arc;

use smallvec::SmallVec;

use super::decision::BucketState;
use super::operations::{MOST_SLOW_RUNS, PARTS, WRONG_TYPE, read_given, read_levels, under_its_quotas};
use super::returning::Return;
use super::state::{Bucket, Moment};
use crate::primitive::quota::Quotas;
use crate::store::{Arguments, Field, Fields, Garbled, Never, Operation, Script, script};

/// Fewer are not charged ahead.
const LEAST: i64 = 8;

/// Which share of the tokens that are to be had one process may charge ahead: a fourth.
const SHARE: i64 = 4;

/// Charges tokens ahead.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Prefetch {
    pub(crate) quotas: Quotas,
    /// How many at most.
    pub(crate) most: i64,
}

/// So many tokens were charged ahead, which led to this state.
#[derive(Debug)]
pub(crate) struct Prefetched {
    pub(crate) count: i64,
    pub(crate) state: BucketState,
}

/// Gives back tokens that were charged ahead and not used.
///
/// What came back since then is not given: had the tokens not been charged, the bucket might have been full, and the
/// tokens that came lost. And nothing is given while reservations are yet to act.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct GiveBack {
    pub(crate) quotas: Quotas,
    pub(crate) tokens: i64,
    /// When they were charged, by the server's clock, and how long ago that is at most by the clock here, µs: the server's
    /// may be set back.
    pub(crate) charged: i64,
    pub(crate) age: i64,
    /// What the charge led to.
    pub(crate) tats: SmallVec<[Moment; 1]>,
    /// Dropped when it is done, or will not be.
    pub(super) _returning: Option<Arc<Return>>,
}

impl Bucket {
    /// Charges up to so many tokens ahead.
    fn prefetch(&mut self, quotas: &Quotas, now: i64, most: i64) -> i64 {
        if self.start(now) > now {
            return 0;
        }
        let count = most.min(self.free(quotas, now, 0).div_euclid(SHARE));
        if count < LEAST {
            return 0;
        }
        self.charge(quotas, now, count);
        count
    }

    /// How it looks to who holds tokens of it that were charged ahead: they are there, and act at once, whatever others have
    /// reserved since.
    pub(super) fn hold(&mut self, quotas: &Quotas, now: i64, tokens: i64) {
        for (level, limit) in self.levels.iter_mut().zip(quotas.limits()) {
            if limit.num == 0 {
                level.tat.whole = (level.tat.whole - tokens).clamp(0, limit.burst);
                continue;
            }
            let tat = level.tat.minus(limit, Moment::default().advance(limit, tokens));
            level.tat = tat.min(Moment::at(now).advance(limit, limit.burst));
        }
    }

    /// Whether anything was given back.
    fn give_back(&mut self, now: i64, step: &GiveBack) -> bool {
        let age = step.age.max(now - step.charged);
        let mut given = false;
        let levels = self.levels.iter_mut().zip(step.quotas.limits());
        for ((level, limit), mine) in levels.zip(&step.tats) {
            if limit.num == 0 {
                let left = (level.tat.whole - step.tokens).max(0);
                given |= left < level.tat.whole;
                level.tat.whole = left;
                continue;
            }
            let was_reset = level.tat < *mine;
            let is_pending = level.tat.max(level.last).whole > now + limit.span;
            let mut back = Moment::default().advance(limit, step.tokens);
            back.whole -= age;
            if !was_reset && !is_pending && back.whole >= 0 && back > Moment::default() {
                level.tat = level.tat.minus(limit, back);
                level.last = level.tat;
                given = true;
            }
        }
        given
    }
}

impl GiveBack {
    /// Gives back tokens whose charge led to a state, at most `age` µs ago.
    pub(crate) fn new(state: &BucketState, tokens: i64, age: i64) -> Self {
        let BucketState { quotas, now, bucket } = state;
        let tats = bucket.pairs(quotas).map(|(level, _)| level.tat).collect();
        Self { quotas: quotas.clone(), tokens, charged: *now, age, tats, _returning: None }
    }
}

impl Prefetched {
    /// What gives so many of them back, which were charged at most `age` µs ago.
    pub(crate) fn give_back(&self, tokens: i64, age: i64) -> GiveBack {
        GiveBack::new(&self.state, tokens, age)
    }
}

impl Operation for Prefetch {
    type Cell = Bucket;
    type Reply = Prefetched;
    // What nobody is left to receive comes back with time.
    type Undo = Never<Bucket>;
    const SCRIPT: Script = script!("token_bucket/prefetch", "lib/bucket", "lib/runs");
    const PARTS: &'static [&'static str] = PARTS;
    const MOST_RUNS: usize = MOST_SLOW_RUNS;
    const AT_MOST_ONCE: bool = true;

    under_its_quotas!();

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(self.most);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Prefetched, Garbled> {
        let mut fields = match fields.next()? {
            Field::Integer(-1) => return Err(WRONG_TYPE),
            Field::List(fields) => fields,
            _ => return Err(Garbled("a script answered something else where a list belongs")),
        };
        let count = fields.integer()?;
        if !(0..=self.most).contains(&count) {
            return Err(Garbled("a script charged another number of tokens ahead"));
        }
        let bucket = read_levels(&self.quotas, &mut fields)?;
        Ok(Prefetched { count, state: BucketState { quotas: self.quotas, now, bucket } })
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> Prefetched {
        let (mut after, is_new) = bucket.fitted(&self.quotas, now);
        let count = after.prefetch(&self.quotas, now, self.most);
        if count > 0 || is_new {
            bucket.clone_from(&after);
        }
        Prefetched { count, state: BucketState { quotas: self.quotas, now, bucket: after } }
    }
}

impl Operation for GiveBack {
    type Cell = Bucket;
    type Reply = bool;
    type Undo = Never<Bucket>;
    const SCRIPT: Script = script!("token_bucket/give_back", "lib/bucket", "lib/runs");
    const PARTS: &'static [&'static str] = PARTS;
    const MOST_RUNS: usize = MOST_SLOW_RUNS;
    const SAME_ONCE: bool = false;
    // What was charged last is given back first.
    const IN_ORDER: bool = true;
    // Twice would be too much.
    const AT_MOST_ONCE: bool = true;

    under_its_quotas!();

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        for number in [self.tokens, self.charged, self.age] {
            call.integer(number);
        }
        for tat in &self.tats {
            call.integer(tat.whole);
            call.integer(tat.part);
        }
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<bool, Garbled> {
        read_given(&mut fields)
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> bool {
        let (mut after, is_new) = bucket.fitted(&self.quotas, now);
        let given = !is_new && after.give_back(now, &self);
        if given {
            *bucket = after;
        }
        given
    }
}
