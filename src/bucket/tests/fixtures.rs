//! Steps on buckets for the tests of several modules.

use crate::bucket::Bucket;
use crate::bucket::adjust::{Adjust, Peek};
use crate::bucket::charge::Charge;
use crate::bucket::decision::{BucketState, Decision};
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::store::operation::Operation as _;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::acquire::Reservation;

pub(crate) const START: i64 = 1_760_000_000_000_000;

pub(crate) const SECOND: i64 = 1_000_000;

pub(crate) fn one(quota: Quota) -> Quotas {
    Quotas::new([quota]).unwrap()
}

/// The state of a bucket at `START`.
pub(crate) fn state_of(quotas: &Quotas, bucket: Bucket) -> BucketState {
    BucketState {
        quotas: quotas.clone(),
        now: START,
        bucket,
    }
}

pub(crate) fn ask_for(quotas: &Quotas, cost: i64, wait: i64) -> Charge {
    Charge::one(quotas.clone(), cost.try_into().unwrap(), wait)
}

/// Asks for tokens that are available within `wait` µs.
pub(crate) fn reserve(
    bucket: &mut Bucket,
    quotas: &Quotas,
    now: i64,
    (cost, wait): (i64, i64),
) -> Decision {
    ask_for(quotas, cost, wait).apply(bucket, now).decision()
}

/// Takes tokens if they are available. Returns whether they are.
pub(crate) fn take(bucket: &mut Bucket, quotas: &Quotas, now: i64, cost: i64) -> bool {
    reserve(bucket, quotas, now, (cost, 0)).is_admitted()
}

/// Charges tokens even if they are not available, and blocks for this number of µs.
pub(crate) fn adjust(
    bucket: &mut Bucket,
    quotas: &Quotas,
    now: i64,
    (tokens, block): (i64, i64),
) -> BucketState {
    Adjust {
        quotas: quotas.clone(),
        tokens,
        block,
    }
    .apply(bucket, now)
}

pub(crate) fn peek(bucket: &Bucket, quotas: &Quotas, now: i64) -> BucketState {
    Peek.apply(&mut bucket.clone(), now).under(quotas)
}

/// Checks every closed interval: the requests in it acted with at most the burst, `held`, and the tokens that are
/// refilled in the time of the interval plus `rounded` µs.
pub(crate) fn check_intervals(
    quotas: &Quotas,
    ledger: &mut [(i64, i64)],
    (held, rounded): (i64, i64),
    told: impl Fn() -> String,
) {
    ledger.sort_unstable();
    for limit in quotas.limits() {
        let (num, den) = (i128::from(limit.num), i128::from(limit.den));
        let full = i128::from(limit.burst + held) * num.max(1);
        for (first, (from, _)) in ledger.iter().enumerate() {
            let mut sum = 0;
            for (to, cost) in &ledger[first..] {
                sum += i128::from(*cost);
                let refill = if num == 0 {
                    0
                } else {
                    i128::from(to - from + rounded) * den
                };
                let span = to - from;
                assert!(
                    sum * num.max(1) <= full + refill,
                    "{sum} in {span} µs of {limit:?}: {}",
                    told()
                );
            }
        }
    }
}

/// Cancels a reservation, where the clock of the store does not advance by itself.
pub(crate) async fn cancel_at_once(reservation: &mut Reservation) {
    if let Some(cancel) = reservation.take_cancel(0) {
        reservation
            .bucket
            .cancel(&reservation.key, cancel)
            .await
            .unwrap();
    }
}

/// The remaining tokens of each quota of the key `k`.
pub(crate) async fn left_of_each(bucket: &TokenBucket) -> Vec<u32> {
    let state = bucket.peek("k").await.unwrap();
    state.balances().map(|balance| balance.remaining).collect()
}

/// The held and the remaining tokens of the key `k`.
pub(crate) async fn left(bucket: &TokenBucket) -> (u32, u32) {
    let state = bucket.peek("k").await.unwrap();
    (state.held(), state.remaining())
}
