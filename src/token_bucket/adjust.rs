//! Charges without a check, adds tokens, and blocks: `adjust` of `lua/correct.lua` in Rust.

#[cfg(test)]
mod tests;

use super::bucket_state::BucketState;
use super::operations::{BUCKETS, MOST_SLOW_RUNS, read_bucket, under_its_quotas};
use super::state::{Bucket, Level, Moment};
use crate::store::{Arguments, Fields, Garbled, Operation, Repeat, Script, function};
use crate::token_bucket::quota::{MAX_SPAN, MOST_REPEATS, Pace, Quotas};

/// Charges tokens even if they are not available, or adds tokens; and blocks the bucket.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Adjust {
    pub(crate) quotas: Quotas,
    /// The tokens to charge; negative to add tokens.
    pub(crate) tokens: i64,
    /// How long to block the bucket, µs; 0: not at all. A longer block that exists is kept.
    pub(crate) block: i64,
}

impl Level {
    /// The TAT after a charge at the time `at` of at most as much as comes back within 35 years from now.
    pub(super) fn overdrawn(&self, pace: &Pace, now: i64, at: i64, tokens: i64) -> Moment {
        let most = Moment::at(now + MAX_SPAN);
        let after = match pace.take_too_long(tokens) {
            true => most,
            false => self.tat.max(Moment::at(at)).advance(pace, tokens).min(most),
        };
        self.tat.max(after)
    }

    /// Charges at most as much as comes back within 35 years from now.
    fn overdraw(&mut self, pace: &Pace, now: i64, at: i64, tokens: i64) {
        if pace.num == 0 {
            self.overuse(now, at, tokens);
            return;
        }
        let pending = self.last.whole - pace.span > now;
        self.tat = self.overdrawn(pace, now, at, tokens);
        self.last = if pending {
            self.last.max(self.tat)
        } else {
            self.tat
        };
    }

    fn give(&mut self, pace: &Pace, now: i64, tokens: i64) {
        if pace.num == 0 {
            self.tat.whole = (self.tat.whole - tokens).max(0);
            return;
        }
        if self.tat.whole <= now {
            return;
        }
        let pending = self.last.whole - pace.span > now;
        let full = Moment::at(now);
        self.tat = match pace.take_too_long(tokens) {
            true => full,
            false => self
                .tat
                .minus(pace, Moment::default().advance(pace, tokens))
                .max(full),
        };
        if !pending {
            self.last = self.tat;
        }
    }
}

impl Operation for Adjust {
    under_its_quotas!();
    type Reply = BucketState;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "adjust"; BUCKETS, &["correct"]);
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = MOST_SLOW_RUNS;
    const MOST_REPEATS: usize = MOST_REPEATS;

    fn repeats(&self, other: &Self) -> bool {
        (self.tokens, other.tokens) == (0, 0) && self.block == other.block
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(self.tokens);
        call.integer(self.block);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<BucketState, Garbled> {
        let bucket = read_bucket(&self.quotas, now, &mut fields)?;
        Ok(BucketState {
            quotas: self.quotas,
            now,
            bucket,
        })
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> BucketState {
        bucket.sweep(now);
        let (mut after, _) = bucket.fitted(&self.quotas, now);
        let at = after.start(now);
        for (level, limit) in after.levels.iter_mut().zip(self.quotas.limits()) {
            match self.tokens {
                0 => {}
                charged @ 1.. => level.overdraw(limit, now, at, charged),
                added => level.give(limit, now, -added),
            }
        }
        if self.block > 0 {
            after.blocked_until = after.blocked_until.max(now + self.block);
        }
        bucket.write(&after, now);
        BucketState {
            quotas: self.quotas,
            now,
            bucket: after,
        }
    }
}
