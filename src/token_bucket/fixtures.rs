//! Steps on buckets for the tests of several modules.

use super::bucket_state::BucketState;
use super::operations::Reserve;
use super::peek::Peek;
use super::state::{Ask, Bucket};
use super::{Decision, Reservation, TokenBucket};
use crate::store::Operation as _;
use crate::{Quota, Quotas};

pub(crate) const START: i64 = 1_760_000_000_000_000;
pub(super) const SECOND: i64 = 1_000_000;

pub(super) fn one(quota: Quota) -> Quotas {
    Quotas::new([quota]).unwrap()
}

/// Asks for tokens that are available within `wait` µs.
pub(super) fn reserve(
    bucket: &mut Bucket,
    quotas: &Quotas,
    now: i64,
    (cost, wait): (i64, i64),
) -> Decision {
    Reserve {
        quotas: quotas.clone(),
        ask: Ask { cost, wait },
    }
    .apply(bucket, now)
}

/// Takes tokens if they are available. Returns whether they are.
pub(super) fn take(bucket: &mut Bucket, quotas: &Quotas, now: i64, cost: i64) -> bool {
    reserve(bucket, quotas, now, (cost, 0)).is_admitted()
}

pub(super) fn peek(bucket: &Bucket, quotas: &Quotas, now: i64) -> BucketState {
    Peek.apply(&mut bucket.clone(), now).under(quotas)
}

/// Checks every closed interval of when requests acted, and with how many tokens: no more than the burst and `held`, and what
/// comes back in the time and `rounded` µs.
pub(super) fn check_intervals(
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
pub(super) async fn cancel_at_once(reservation: &mut Reservation) {
    if let Some(cancel) = reservation.take_cancel(0) {
        reservation
            .bucket
            .cancel(&reservation.key, cancel)
            .await
            .unwrap();
    }
}

/// What is held and what is left of the key `k`.
pub(super) async fn left(bucket: &TokenBucket) -> (u32, u32) {
    let state = bucket.peek("k").await.unwrap();
    (state.held(), state.remaining())
}
