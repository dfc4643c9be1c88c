//! Reads a bucket, with the quotas that are stored with it: `peek` of `lua/correct.lua` in Rust.

use smallvec::SmallVec;

use super::bucket_state::BucketState;
use super::operations::{
    BUCKETS, MOST_RUNS, OUT_OF_RANGE, PARTS, WRONG_TYPE, read_moment, read_time,
};
use super::state::{Bucket, Level};
use crate::store::{Cell as _, Field, Fields, Garbled, Operation, Repeat, Script, function};
use crate::token_bucket::quota::{MOST_REPEATS, Quotas, Tokens};

/// Reads all levels of a bucket.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Peek;

/// A bucket as it is stored, with the levels of all quotas.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Stored {
    pub(super) bucket: Bucket,
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
        // A level has seven numbers. What is held has two, behind all levels.
        while numbers.len() > 2 {
            let (tat, last) = (read_moment(&mut numbers)?, read_moment(&mut numbers)?);
            let (num, den, burst) = (numbers.integer()?, numbers.integer()?, numbers.integer()?);
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
