//! Prefetching: charges tokens before the requests that will use them. It is `prefetch` of `lua/correct.lua` in Rust.

#[cfg(test)]
mod tests;

use crate::bucket::Bucket;
use crate::bucket::decision::BucketState;
use crate::bucket::level::Moment;
use crate::bucket::quotas::Quotas;
use crate::bucket::wire::{BUCKETS, MOST_SLOW_RUNS, WRONG_TYPE, read_levels, under_its_quotas};
use crate::store::operation::{
    Arguments, Field, Fields, Garbled, Operation, Repeat, Script, function,
};

/// The minimum size of a prefetch.
pub(crate) const LEAST: i64 = 8;

/// One process may prefetch at most `1 / SHARE` of the available tokens.
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

    /// Changes the state to the view of the process that holds `tokens` prefetched tokens: they are available and act
    /// at once, regardless of later reservations of other requests. All quotas refill: others are not prefetched.
    pub(crate) fn hold(&mut self, quotas: &Quotas, now: i64, tokens: i64) {
        for (level, limit) in self.levels.iter_mut().zip(quotas.limits()) {
            let tat = level
                .tat
                .minus(limit, Moment::default().advance(limit, tokens));
            level.tat = tat.min(Moment::at(now).advance(limit, limit.burst));
        }
    }
}

impl Operation for Prefetch {
    under_its_quotas!();
    type Reply = Prefetched;
    // If the caller was dropped, the tokens are refilled with time.
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "prefetch"; BUCKETS, &["correct"]);
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_SLOW_RUNS;

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
            return Err(Garbled(
                "a script prefetched a number of tokens out of range",
            ));
        }
        let bucket = read_levels(&self.quotas, &mut fields)?;
        Ok(Prefetched {
            count,
            state: BucketState {
                quotas: self.quotas,
                now,
                bucket,
            },
        })
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> Prefetched {
        let swept = bucket.sweep(now);
        let (mut after, is_new) = bucket.fitted(&self.quotas, now);
        let count = after.prefetch(&self.quotas, now, self.most);
        if count > 0 || is_new || swept {
            bucket.write(&after, now);
        }
        Prefetched {
            count,
            state: BucketState {
                quotas: self.quotas,
                now,
                bucket: after,
            },
        }
    }
}
