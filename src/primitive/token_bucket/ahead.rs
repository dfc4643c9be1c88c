//! Prefetching: charges tokens before the requests that will use them, and gives unused tokens back.
//! `lua/token_bucket/prefetch.lua` and `give_back.lua` in Rust.

use std::sync::Arc;

use smallvec::SmallVec;

use super::decision::BucketState;
use super::operations::{MOST_SLOW_RUNS, PARTS, WRONG_TYPE, read_given, read_levels, under_its_quotas};
use super::returning::Return;
use super::state::{Bucket, Moment};
use crate::primitive::quota::Quotas;
use crate::store::{Arguments, Field, Fields, Garbled, Never, Operation, Repeat, Script, script};

/// The minimum size of a prefetch.
const LEAST: i64 = 8;

/// One process may prefetch at most one in `SHARE` of the available tokens.
const SHARE: i64 = 4;

/// Prefetches tokens.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Prefetch {
    pub(crate) quotas: Quotas,
    /// The maximum number of tokens.
    pub(crate) most: i64,
}

/// The number of prefetched tokens, and the state after the charge.
#[derive(Debug)]
pub(crate) struct Prefetched {
    pub(crate) count: i64,
    pub(crate) state: BucketState,
}

/// Gives back charged tokens that are not used.
///
/// Tokens that came back since the charge are not given: without the charge, the bucket might have been full, and
/// these tokens would have been lost. Nothing is given while a reservation has not acted yet.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct GiveBack {
    pub(crate) quotas: Quotas,
    pub(crate) tokens: i64,
    /// When the tokens were charged, by the server's clock, and the time since the charge by this process's clock,
    /// at most. Both are µs. Two clocks, because the server's clock may be set back.
    pub(crate) charged: i64,
    pub(crate) age: i64,
    /// The TATs after the charge.
    pub(crate) tats: SmallVec<[Moment; 1]>,
    /// Dropped when the operation is complete or has failed.
    pub(super) _returning: Option<Arc<Return>>,
}

impl Bucket {
    /// Prefetches up to `most` tokens. Returns the number of tokens.
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

    /// Changes the state to that seen by the process that holds `tokens` prefetched tokens: they are available and
    /// act at once, regardless of what other requests reserved since.
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

    /// Returns whether anything was given back.
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
    /// Gives back tokens whose charge led to `state`, at most `age` µs ago.
    pub(crate) fn new(state: &BucketState, tokens: i64, age: i64) -> Self {
        let BucketState { quotas, now, bucket } = state;
        let tats = bucket.pairs(quotas).map(|(level, _)| level.tat).collect();
        Self { quotas: quotas.clone(), tokens, charged: *now, age, tats, _returning: None }
    }
}

impl Prefetched {
    /// Gives back `tokens` of them, which were charged at most `age` µs ago.
    pub(crate) fn give_back(&self, tokens: i64, age: i64) -> GiveBack {
        GiveBack::new(&self.state, tokens, age)
    }
}

impl Operation for Prefetch {
    type Cell = Bucket;
    type Reply = Prefetched;
    // If the caller is gone, the tokens come back with time.
    type Undo = Never<Bucket>;
    const SCRIPT: Script = script!("token_bucket/prefetch", "lib/bucket", "lib/runs");
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_SLOW_RUNS;

    under_its_quotas!();

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(self.most);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Prefetched, Garbled> {
        let mut fields = match fields.next()? {
            Field::Integer(-1) => return Err(WRONG_TYPE),
            Field::List(fields) => fields,
            _ => return Err(Garbled("a script returned a value that is not a list")),
        };
        let count = fields.integer()?;
        if !(0..=self.most).contains(&count) {
            return Err(Garbled("a script prefetched a number of tokens out of range"));
        }
        let bucket = read_levels(&self.quotas, &mut fields)?;
        Ok(Prefetched { count, state: BucketState { quotas: self.quotas, now, bucket } })
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> Prefetched {
        let (mut after, is_new) = bucket.fitted(&self.quotas, now);
        let count = after.prefetch(&self.quotas, now, self.most);
        if count > 0 || is_new {
            bucket.write(&after, now);
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
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_SLOW_RUNS;
    const SAME_ONCE: bool = false;
    // The most recent charge is given back first.
    const IN_ORDER: bool = true;

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
            bucket.write(&after, now);
        }
        given
    }
}
