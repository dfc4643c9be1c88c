//! Charges without a check, adds tokens, blocks and resets a bucket, and reads it with its stored quotas:
//! `lua/correct.lua` in Rust.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use crate::bucket::Bucket;
use crate::bucket::calendar::Tokens;
use crate::bucket::decision::BucketState;
use crate::bucket::level::Level;
use crate::bucket::quota::MOST_REPEATS;
use crate::bucket::quotas::Quotas;
use crate::bucket::wire::{
    BUCKETS, MOST_RUNS, MOST_SLOW_RUNS, OUT_OF_RANGE, PARTS, WRONG_TYPE, read_bucket, read_moment,
    read_time, under_its_quotas,
};
use crate::store::operation::{
    Arguments, Cell as _, Field, Fields, Garbled, Operation, Repeat, Script, function,
};

/// Charges tokens even if they are not available, or adds tokens; and blocks the bucket.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Adjust {
    pub(crate) quotas: Quotas,
    /// The tokens to charge; negative to add tokens.
    pub(crate) tokens: i64,
    /// How long to block the bucket, µs; 0: no block. An existing longer block is kept.
    pub(crate) block: i64,
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

/// Fills a bucket and unblocks it.
#[derive(Debug)]
pub(crate) struct Reset;

impl Operation for Reset {
    type Cell = Bucket;
    type Reply = ();
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "reset"; BUCKETS, &["correct"]);
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Never;

    fn decode(self, _: usize, _: i64, _: Fields<'_>) -> Result<(), Garbled> {
        Ok(())
    }

    fn apply(self, bucket: &mut Bucket, _: i64) {
        *bucket = Bucket::default();
    }
}

/// Reads all levels of a bucket.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Peek;

/// A stored bucket, with the levels of all quotas.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Stored {
    pub(crate) bucket: Bucket,
    now: i64,
}

impl Stored {
    /// The state under these quotas.
    pub(crate) fn under(self, quotas: &Quotas) -> BucketState {
        let (bucket, _) = self.bucket.fit(quotas, self.now);
        BucketState {
            quotas: quotas.clone(),
            now: self.now,
            bucket,
        }
    }

    /// The state under the quotas that are stored with the bucket; `None` if it is full.
    pub(crate) fn under_its_own(self) -> Option<BucketState> {
        let Self { bucket, now } = self;
        let quotas = Quotas::stored(bucket.levels.iter().map(|level| level.quota))?;
        Some(BucketState {
            quotas,
            now,
            bucket,
        })
    }
}

impl Operation for Peek {
    type Cell = Bucket;
    type Reply = Stored;
    type Undo = Self;
    const SCRIPT: Script = function!(Reads: "peek"; BUCKETS, &["correct"]);
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Safe;
    const MOST_RUNS: usize = MOST_RUNS;
    const MOST_REPEATS: usize = MOST_REPEATS;

    fn repeats(&self, _other: &Self) -> bool {
        true
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Stored, Garbled> {
        let Field::List(mut numbers) = fields.next()? else {
            return Err(WRONG_TYPE);
        };
        let mut bucket = Bucket::new(read_time(&mut numbers)?, SmallVec::new());
        // Each level has seven numbers. The held tokens have two numbers, after all levels.
        while numbers.len() > 2 {
            let tat = read_moment(&mut numbers)?;
            let last = read_moment(&mut numbers)?;
            let num = numbers.integer()?;
            let den = numbers.integer()?;
            let burst = numbers.integer()?;
            let quota = Tokens { burst, num, den };
            if !quota.are_valid() {
                return Err(WRONG_TYPE);
            }
            bucket
                .levels
                .push(Level::read(tat, last, quota).ok_or(OUT_OF_RANGE)?);
        }
        bucket.read_held(&mut numbers)?;
        Ok(Stored { bucket, now })
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> Stored {
        let mut after = bucket.clone();
        after.sweep(now);
        after.set_back(now);
        after.move_windows(now);
        if after.is_idle(now) {
            after = Bucket::default();
        }
        Stored {
            bucket: after.told(),
            now,
        }
    }
}
