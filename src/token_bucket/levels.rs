//! Reads a bucket without its quotas, which are stored with it.

use smallvec::SmallVec;

use super::decision::BucketState;
use super::operations::{PARTS, Reset, WRONG_TYPE, moment};
use super::state::{Bucket, Level};
use crate::store::{
    Arguments, Cell as _, Field, Fields, Garbled, Namespace, Never, Operation, Repeat, Script, script,
};
use crate::token_bucket::quota::{Quotas, Tokens};
use crate::{Error, Key};

/// Reads all levels of a bucket.
#[derive(Debug)]
struct Levels;

/// Returns the state of a bucket under the quotas that are stored with it; `None` if it is full.
pub(crate) async fn levels(namespace: &Namespace<Bucket>, key: Key) -> Result<Option<BucketState>, Error> {
    namespace.client().run(key, Levels).await
}

/// Fills a bucket and unblocks it.
pub(crate) async fn reset(namespace: &Namespace<Bucket>, key: Key) -> Result<(), Error> {
    namespace.client().run(key, Reset).await
}

fn state(bucket: Bucket, now: i64) -> Result<Option<BucketState>, Garbled> {
    if bucket.levels.is_empty() {
        return Ok(None);
    }
    let quotas = Quotas::stored(bucket.levels.iter().map(|level| level.quota)).ok_or(WRONG_TYPE)?;
    Ok(Some(BucketState { quotas, now, bucket }))
}

impl Operation for Levels {
    type Cell = Bucket;
    type Reply = Option<BucketState>;
    type Undo = Never<Bucket>;
    const SCRIPT: Script = script!("token_bucket/levels", "lib/bucket", "lib/runs");
    const PARTS: &'static [&'static str] = PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn shared(&self, call: &mut Arguments<'_>) {
        call.integer(0);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let Field::List(mut numbers) = fields.next()? else { return Err(WRONG_TYPE) };
        let (blocked_until, mut levels) = (numbers.integer()?, SmallVec::new());
        while let Ok(whole) = numbers.integer() {
            let tat = moment(whole, numbers.integer()?)?;
            let last = moment(numbers.integer()?, numbers.integer()?)?;
            let (num, den, burst) = (numbers.integer()?, numbers.integer()?, numbers.integer()?);
            levels.push(Level { tat, last, quota: Tokens { burst, num, den }, ..Level::default() });
        }
        state(Bucket::new(blocked_until, levels), now)
    }

    fn apply(self, bucket: &mut Bucket, now: i64) -> Self::Reply {
        let mut after = if bucket.is_idle(now) { Bucket::default() } else { bucket.clone() };
        after.set_back(now);
        // The quotas in memory are those of callers, so they are valid.
        state(after.told(), now).unwrap_or_default()
    }
}
