//! The operations on a bucket. Each is implemented twice: in `lua/` and in Rust.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::SmallVec;

use super::bucket_state::{BucketState, micros};
use super::cancel::Cancel;
use super::decision::Decision;
use super::state::{Ask, Bucket, Level, Moment};
use crate::store::{
    Arguments, Cell as _, END, Field, Fields, Garbled, Operation, Repeat, Script, function,
};
use crate::token_bucket::quota::{MOST_REPEATS, Quotas};

/// Charges a request in full, or not at all.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Reserve {
    pub(crate) quotas: Quotas,
    pub(crate) ask: Ask,
}

/// Charges requests to one bucket or to several.
pub(super) const RESERVE: Script = function!(Writes: "reserve"; BUCKETS, &["reserve"]);

/// Steps on the holds of one bucket or of several.
pub(super) const HOLD: Script = function!(Writes: "hold"; BUCKETS, &["hold"]);

/// Fills a bucket and unblocks it.
#[derive(Debug)]
pub(crate) struct Reset;

pub(super) const PARTS: &[&str] = &["tat"];

/// The maximum number of buckets in one call of [`Reserve`] or [`Peek`](super::peek::Peek): about 0.4 or 0.8 ms of server time.
pub(super) const MOST_RUNS: usize = 128;

/// The maximum for operations that process and write states in table form, which takes four times as long.
pub(super) const MOST_SLOW_RUNS: usize = 64;

/// Operations answer -1 for a run whose key does not hold a bucket.
pub(super) const WRONG_TYPE: Garbled = Garbled(
    "WRONGTYPE the key holds a value that is not a bucket: delete the key, or choose another prefix",
);

pub(super) const OUT_OF_RANGE: Garbled = Garbled("a script returned a time out of range");

/// The common part of the operations on one bucket. Those under the same quotas share one call, which contains the
/// quotas once.
macro_rules! under_its_quotas {
    () => {
        type Cell = $crate::token_bucket::state::Bucket;
        const PARTS: &'static [&'static str] = $crate::token_bucket::operations::PARTS;

        fn group(&self) -> Option<u128> {
            Some(self.quotas.id() as u128)
        }

        fn shared(&self, call: &mut $crate::store::Arguments<'_>) {
            $crate::token_bucket::operations::write_limits(std::iter::once(&self.quotas), call);
        }
    };
}
pub(super) use under_its_quotas;

/// The pieces of the library that every operation on buckets needs.
pub(super) const BUCKETS: &[&str] = &[
    "calendar",
    "level",
    "change",
    "holds",
    "hold_step",
    "bucket",
    "buckets",
    "bare",
];

/// Writes the quotas of limits, as `lua/level.lua` reads them.
pub(super) fn write_limits<'a>(
    limits: impl ExactSizeIterator<Item = &'a Quotas>,
    call: &mut Arguments<'_>,
) {
    call.integer(limits.len() as i64);
    for quotas in limits {
        let (text, numbers) = quotas.arguments();
        call.text(Arc::clone(text));
        call.bytes(Arc::clone(numbers));
    }
}

/// Reads a bucket, in table form or bare.
pub(super) fn read_bucket(
    quotas: &Quotas,
    now: i64,
    fields: &mut Fields<'_>,
) -> Result<Bucket, Garbled> {
    match fields.next()? {
        Field::Integer(-1) => Err(WRONG_TYPE),
        Field::Integer(ahead) => read_bare(quotas, now, ahead),
        Field::List(mut fields) => read_levels(quotas, &mut fields),
        Field::Text(_) => Err(Garbled("a script returned a text instead of a bucket")),
    }
}

/// Reads a number that is not negative. A script answers -1 for a run whose key does not hold a bucket.
pub(super) fn read_count(fields: &mut Fields<'_>) -> Result<i64, Garbled> {
    match fields.integer()? {
        ..0 => Err(WRONG_TYPE),
        count => Ok(count),
    }
}

/// Charges a bucket, as it was before a run of requests for `cost` tokens each, of which the first `admitted` were admitted,
/// for the requests up to the `nth` (from 0).
pub(super) fn charged(
    mut bucket: Bucket,
    quotas: &Quotas,
    now: i64,
    (cost, admitted, nth): (i64, i64, i64),
) -> Bucket {
    // First the admitted requests of the run before this one, then this one.
    let before = admitted.min(nth);
    if before > 0 {
        bucket.charge(quotas, now, before * cost);
    }
    if nth < admitted {
        bucket.charge(quotas, now, cost);
    }
    bucket
}

/// Reads a bucket from the bare form of `lua/bare.lua`.
fn read_bare(quotas: &Quotas, now: i64, ahead: i64) -> Result<Bucket, Garbled> {
    if !(0..END).contains(&ahead) {
        return Err(OUT_OF_RANGE);
    }
    let mut bucket = Bucket::full(quotas);
    if ahead > 0 {
        for (level, limit) in bucket.levels.iter_mut().zip(quotas.limits()) {
            let tat = moment(now + ahead / limit.den, ahead % limit.den)?;
            (level.tat, level.last) = (tat, tat);
        }
    }
    Ok(bucket)
}

/// Reads a bucket from the full form that `told` in `lua/bucket.lua` writes.
pub(super) fn read_levels(quotas: &Quotas, fields: &mut Fields<'_>) -> Result<Bucket, Garbled> {
    let blocked_until = read_time(fields)?;
    let mut levels = SmallVec::new();
    for limit in quotas.limits() {
        let (tat, last) = (read_moment(fields)?, read_moment(fields)?);
        levels.push(Level::read(tat, last, limit.tokens).ok_or(OUT_OF_RANGE)?);
    }
    let mut bucket = Bucket::new(blocked_until, levels);
    bucket.read_held(fields)?;
    Ok(bucket)
}

pub(super) fn read_time(fields: &mut Fields<'_>) -> Result<i64, Garbled> {
    Ok(moment(fields.integer()?, 0)?.whole)
}

pub(super) fn read_moment(fields: &mut Fields<'_>) -> Result<Moment, Garbled> {
    moment(fields.integer()?, fields.integer()?)
}

/// Checks that a time from a script is in the range in which no arithmetic overflows.
fn moment(whole: i64, part: i64) -> Result<Moment, Garbled> {
    if (0..END).contains(&whole) && (-1..=1 << 20).contains(&part) {
        Ok(Moment { whole, part })
    } else {
        Err(OUT_OF_RANGE)
    }
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
        // Of equal requests that wait, some may act in another window of a calendar quota.
        self.ask == other.ask && (self.ask.wait == 0 || !self.quotas.have_windows())
    }

    fn own(&self, count: usize, call: &mut Arguments<'_>) {
        call.numbers([count as i64, self.ask.wait, self.ask.cost]);
    }

    fn decode(self, nth: usize, now: i64, mut fields: Fields<'_>) -> Result<Decision, Garbled> {
        let nth = nth as i64;
        // Without numbers, all are admitted to a bucket that was full.
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
        // A refusal leaves the bucket unchanged, because the script writes nothing then. But a new quota is stored,
        // and refills from now on; and so is a state that was moved since the clock was set back.
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
        let (first, last) = (decisions.first()?, decisions[..count].last()?);
        Some(Cancel::combined(
            &first.state,
            &last.state,
            last.cost.into(),
            count,
        ))
    }
}

impl Reserve {
    /// Like [`apply`](Operation::apply), where nobody reads an admission. `None`: the request is admitted.
    pub(super) fn admit(
        quotas: &Quotas,
        ask: Ask,
        bucket: &mut Bucket,
        now: i64,
    ) -> Option<Decision> {
        // An unused bucket has nothing that could have ended, or be of an earlier time.
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
