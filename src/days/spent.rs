//! Buckets that are never full.

use std::time::Duration;

use super::{HOUR, World, days, in_both};
use crate::{Quota, Quotas, TokenBucket};

const STEP: Duration = Duration::from_secs(600);

/// Takes all that there is. Returns how much it was.
async fn drain(bucket: &TokenBucket) -> u64 {
    let mut taken = 0;
    while bucket.allow("k").await.unwrap().is_admitted() {
        taken += 1;
    }
    taken
}

/// The tokens of so long a time, with the burst.
fn most(burst: u64, per_hour: u64, span: Duration) -> u64 {
    burst + span.as_secs() * per_hour / HOUR.as_secs()
}

async fn buckets(mut world: World) {
    let quotas = [
        vec![Quota::per_hour(9).burst(5)],
        vec![Quota::per_hour(9).burst(5), Quota::per_hour(7).burst(20)],
        // Refills, and is given out once.
        vec![Quota::per_hour(9).burst(5), Quota::non_refilling(400)],
    ];
    let open = |(at, quotas): (usize, &Vec<Quota>)| {
        let quotas = Quotas::new(quotas.iter().cloned()).unwrap();
        world.each(|store| TokenBucket::new(store, &format!("bucket{at}"), quotas.clone()).unwrap())
    };
    let all: Vec<_> = quotas.iter().enumerate().map(open).collect();
    let mut taken = [0_u64; 3];
    let mut round = 0;
    while world.passed < days() {
        for (each, taken) in all.iter().zip(&mut taken) {
            *taken += drain(&each[round % each.len()]).await;
        }
        round += 1;
        let passed = world.passed;
        // Never more, and no token is lost.
        let first = most(5, 9, passed);
        assert!((first - 1..=first).contains(&taken[0]), "{taken:?} after {passed:?}: {first}");
        let second = first.min(most(20, 7, passed));
        assert!((second - 1..=second).contains(&taken[1]), "{taken:?} after {passed:?}: {second}");
        let third = first.min(400);
        assert!((third - 1..=third).contains(&taken[2]), "{taken:?} after {passed:?}: {third}");
        world.skip(STEP);
    }
    world.ends(&["bucket2"]).await;
}

/// Calls with quotas of their own share a bucket, which is blocked now and then.
async fn blocked_buckets(mut world: World) {
    let quota = |per_hour: u32| Quotas::new([Quota::per_hour(per_hour).burst(5)]).unwrap();
    let buckets = world.each(|store| TokenBucket::new(store, "bucket", quota(9)).unwrap());
    let (mut taken, mut round, mut blocked_until) = ([0_u64; 2], 0, Duration::ZERO);
    while world.passed < days() {
        let bucket = &buckets[round % buckets.len()];
        let plans = [bucket.with_quotas(&quota(9)), bucket.with_quotas(&quota(6))];
        let at = round % 2;
        let got = drain(&plans[at]).await;
        taken[at] += got;
        assert!(got == 0 || world.passed >= blocked_until, "it is blocked at {:?}", world.passed);
        let sum = taken[0] + taken[1];
        assert!(sum <= most(5, 9, world.passed), "{taken:?} after {:?}", world.passed);
        if round % 10 == 9 {
            bucket.block_for("k", 3 * STEP).await.unwrap();
            blocked_until = world.passed + 3 * STEP;
        }
        round += 1;
        world.skip(STEP);
    }
    assert!(taken[0] > 0 && taken[1] > 0, "{taken:?}");
    world.ends(&[]).await;
}

in_both! { buckets blocked_buckets }
