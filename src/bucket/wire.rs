//! Writes quotas as arguments of scripts, and reads buckets from their replies.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::bucket::Bucket;
use crate::bucket::level::{Level, Moment};
use crate::bucket::quotas::Quotas;
use crate::store::notifier::END;
use crate::store::operation::{Arguments, Field, Fields, Garbled, Script, function};

pub(crate) const PARTS: &[&str] = &["tat"];

/// The pieces of the library that every operation on buckets needs.
pub(crate) const BUCKETS: &[&str] = &[
    "calendar",
    "level",
    "change",
    "holds",
    "hold_step",
    "bucket",
    "buckets",
    "bare",
];

/// Charges requests to one bucket or to several.
pub(crate) const RESERVE: Script = function!(Writes: "reserve"; BUCKETS, &["reserve"]);

/// Steps on the holds of one bucket or of several.
pub(crate) const HOLD: Script = function!(Writes: "hold"; BUCKETS, &["hold"]);

/// The maximum number of buckets in one call of [`Charge`](crate::bucket::charge::Charge) of one limit or
/// [`Peek`](crate::bucket::adjust::Peek): about 0.4 or 0.8 ms of server time.
pub(crate) const MOST_RUNS: usize = 128;

/// The maximum for operations that process and write states as tables, which takes four times as long.
pub(crate) const MOST_SLOW_RUNS: usize = 64;

/// An operation returns -1 for a run whose key does not hold a bucket.
pub(crate) const WRONG_TYPE: Garbled = Garbled(
    "WRONGTYPE the key holds a value that is not a bucket: delete the key, or choose another prefix",
);

pub(crate) const OUT_OF_RANGE: Garbled = Garbled("a script returned a time out of range");

/// The common part of the operations on one bucket. Operations under the same quotas share one call, which contains the
/// quotas once.
macro_rules! under_its_quotas {
    () => {
        type Cell = $crate::bucket::Bucket;
        const PARTS: &'static [&'static str] = $crate::bucket::wire::PARTS;

        fn group(&self) -> Option<u128> {
            Some(self.quotas.id() as u128)
        }

        fn shared(&self, call: &mut $crate::store::operation::Arguments<'_>) {
            $crate::bucket::wire::write_limits(std::iter::once(&self.quotas), call);
        }
    };
}

pub(crate) use under_its_quotas;

/// Writes the quotas of limits, as `lua/level.lua` reads them.
pub(crate) fn write_limits<'a>(
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

/// Reads a bucket, in its full or bare form.
pub(crate) fn read_bucket(
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
pub(crate) fn read_levels(quotas: &Quotas, fields: &mut Fields<'_>) -> Result<Bucket, Garbled> {
    let blocked_until = read_time(fields)?;
    let mut levels = SmallVec::new();
    for limit in quotas.limits() {
        let tat = read_moment(fields)?;
        let last = read_moment(fields)?;
        levels.push(Level::read(tat, last, limit.tokens).ok_or(OUT_OF_RANGE)?);
    }
    let mut bucket = Bucket::new(blocked_until, levels);
    bucket.read_held(fields)?;
    Ok(bucket)
}

/// Reads a number that is not negative. A script returns -1 for a run whose key does not hold a bucket.
pub(crate) fn read_count(fields: &mut Fields<'_>) -> Result<i64, Garbled> {
    match fields.integer()? {
        ..0 => Err(WRONG_TYPE),
        count => Ok(count),
    }
}

pub(crate) fn read_time(fields: &mut Fields<'_>) -> Result<i64, Garbled> {
    Ok(moment(fields.integer()?, 0)?.whole)
}

pub(crate) fn read_moment(fields: &mut Fields<'_>) -> Result<Moment, Garbled> {
    moment(fields.integer()?, fields.integer()?)
}

/// Checks that a time from a script is in the range where arithmetic cannot overflow.
fn moment(whole: i64, part: i64) -> Result<Moment, Garbled> {
    if (0..END).contains(&whole) && (-1..=1 << 20).contains(&part) {
        Ok(Moment { whole, part })
    } else {
        Err(OUT_OF_RANGE)
    }
}

/// Returns the bucket after the `nth` (from 0) of a run of requests for `cost` tokens each. `bucket` is the state
/// before the run; the first `admitted` requests were admitted.
pub(crate) fn charged(
    mut bucket: Bucket,
    quotas: &Quotas,
    now: i64,
    (cost, admitted, nth): (i64, i64, i64),
) -> Bucket {
    // First charges the earlier admitted requests of the run, then this one.
    let before = admitted.min(nth);
    if before > 0 {
        bucket.charge(quotas, now, before * cost);
    }
    if nth < admitted {
        bucket.charge(quotas, now, cost);
    }
    bucket
}
