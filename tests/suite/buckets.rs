//! One caller at a time.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tower_distributed::{Quota, Quotas, Store, TokenBucket};

use crate::stores::SOON;

pub(crate) async fn a_burst_is_admitted_and_the_rest_refused(store: &Store, name: &str) {
    let bucket = TokenBucket::new(store, name, Quota::per_hour(60).burst(3)).unwrap();
    for left in (0..3).rev() {
        let decision = bucket.allow("k").await.unwrap();
        assert!(decision.is_admitted() && decision.delay().is_zero());
        assert_eq!((decision.state.tightest().limit, decision.remaining()), (3, left));
    }
    for _ in 0..3 {
        let refused = bucket.allow("k").await.unwrap();
        assert!(!refused.is_admitted());
        let retry = refused.retry_after().unwrap();
        assert!(retry > Duration::from_secs(50) && retry <= Duration::from_secs(60), "{retry:?}");
    }
    assert_eq!(bucket.peek("k").await.unwrap().remaining(), 0);
    bucket.reset("k").await.unwrap();
    assert_eq!(bucket.peek("k").await.unwrap().remaining(), 3);
    assert!(bucket.allow_n("k", 3).await.unwrap().is_admitted());
    assert!(bucket.allow_n("k", 4).await.unwrap_err().is_exceeds_limit());
}

pub(crate) async fn all_quotas_are_charged_or_none(store: &Store, name: &str) {
    let quotas = [Quota::per_hour(1).burst(5).named("large"), Quota::per_hour(1).burst(2).named("small")];
    let bucket = TokenBucket::new(store, name, quotas).unwrap();
    assert!(bucket.allow_n("k", 2).await.unwrap().is_admitted());
    for _ in 0..5 {
        assert!(!bucket.allow("k").await.unwrap().is_admitted());
    }
    let state = bucket.peek("k").await.unwrap();
    let left: Vec<_> = state.balances().map(|balance| (balance.name, balance.remaining)).collect();
    assert_eq!(left, [("large", 3), ("small", 0)]);
    assert_eq!(state.tightest().name, "small");
}

pub(crate) async fn what_never_refills_stays_used_up(store: &Store, name: &str) {
    let bucket = TokenBucket::new(store, name, Quota::non_refilling(2)).unwrap();
    assert!(bucket.allow_n("k", 2).await.unwrap().is_admitted());
    let refused = bucket.allow("k").await.unwrap();
    assert!(!refused.is_admitted());
    assert_eq!((refused.retry_after(), refused.state.reset_after()), (None, None));
    assert!(bucket.reserve("k").await.unwrap_err().is_refused());
    bucket.reset("k").await.unwrap();
    assert!(bucket.allow_n("k", 2).await.unwrap().is_admitted());
}

pub(crate) async fn waiting_takes_its_time(store: &Store, name: &str) {
    let bucket = TokenBucket::new(store, name, Quota::per_second(20).burst(1)).unwrap();
    let began = Instant::now();
    for _ in 0..4 {
        assert!(bucket.wait("k").await.unwrap().is_admitted());
    }
    assert!(began.elapsed() >= Duration::from_millis(149), "{:?}", began.elapsed());

    let slow = TokenBucket::new(store, &format!("{name}.slow"), Quota::per_hour(1)).unwrap();
    let slow = slow.with_max_wait(Duration::from_secs(60));
    slow.wait("k").await.unwrap();
    let error = slow.wait("k").await.unwrap_err();
    assert!(error.is_refused() && error.decision().unwrap().retry_after() > Some(Duration::from_secs(3000)));
}

pub(crate) async fn a_block_holds_for_every_holder_of_the_name(store: &Store, name: &str) {
    let one = TokenBucket::new(store, name, Quota::per_hour(60).burst(5)).unwrap();
    let other = TokenBucket::new(store, name, Quota::per_hour(60).burst(5)).unwrap();
    one.block_for("k", Duration::from_secs(3600)).await.unwrap();
    one.block_for("k", Duration::from_secs(1)).await.unwrap();
    let refused = other.allow("k").await.unwrap();
    assert!(!refused.is_admitted() && refused.remaining() == 0);
    assert!(refused.state.blocked_for() > Duration::from_secs(3000));
    assert!(refused.retry_after() > Some(Duration::from_secs(3000)));
    assert!(other.allow("l").await.unwrap().is_admitted());
    other.reset("k").await.unwrap();
    assert!(one.allow("k").await.unwrap().is_admitted());
}

/// Whatever quotas calls alternate between, what one has charged is owed to the others.
pub(crate) async fn alternating_quotas_do_not_refill(store: &Store, name: &str) {
    let sets: [[&str; 2]; 6] = [
        ["1 in all", "1/h"],
        ["1/h", "1/d"],
        ["1/h; 7/d, burst 1", "7/d, burst 1; 1/h"],
        ["1000/s; 1/h", "1000/s, burst 1"],
        ["1/h, burst 1", "2/h, burst 1"],
        ["1/h, named \"a\"", "1/h, named \"b\""],
    ];
    for (number, [one, other]) in sets.into_iter().enumerate() {
        let one = TokenBucket::new(store, name, one).unwrap();
        let other = one.with_quotas(&other.parse().unwrap());
        let mut admitted = [0, 0];
        for call in 0..40 {
            let bucket = [&one, &other][call % 2];
            admitted[call % 2] += usize::from(bucket.allow(number as u64).await.unwrap().is_admitted());
        }
        assert_eq!(admitted[0], 1, "{} and {}: {admitted:?}", one.quotas(), other.quotas());
        // Only one of them has no quota that is used up by one call: it goes by its own.
        if number != 3 {
            assert_eq!(admitted[1], 0, "{} and {}: {admitted:?}", one.quotas(), other.quotas());
        }
        // What never refills never expires.
        one.reset(number as u64).await.unwrap();
    }
}

/// A change of quotas takes effect for what is owed already, and a higher rate makes nobody wait longer.
pub(crate) async fn a_change_of_quotas_carries_over_what_is_owed(store: &Store, name: &str) {
    let per_day = TokenBucket::new(store, name, Quota::per_day(3)).unwrap();
    assert!(per_day.allow_n("k", 3).await.unwrap().is_admitted());
    let wait = |state: &tower_distributed::token_bucket::BucketState| state.available_after(1).unwrap();
    let before = wait(&per_day.peek("k").await.unwrap());
    assert!(before > Duration::from_secs(28_000), "{before:?}");
    // Three tokens are owed: one comes back every 20 ms.
    let faster = per_day.with_quotas(&Quotas::new([Quota::per_second(50).burst(3)]).unwrap());
    let refused = faster.allow("k").await.unwrap();
    assert!(!refused.is_admitted() && refused.retry_after().unwrap() <= Duration::from_millis(20));
    assert!(timeout(SOON, faster.wait_n("k", 3)).await.unwrap().unwrap().is_admitted());
    // What used to refill and no longer does starts with what is owed, and stays there.
    let never = faster.with_quotas(&Quotas::new([Quota::non_refilling(4)]).unwrap());
    assert!(never.allow_n("k", 1).await.unwrap().remaining() <= 3);
    never.reset("k").await.unwrap();
    // With a smaller burst as much is left as fits, as with SetBurst of x/time/rate.
    let large = TokenBucket::new(store, name, Quota::per_minute(60)).unwrap();
    assert_eq!(large.allow_n("l", 40).await.unwrap().remaining(), 20);
    let small = large.with_quotas(&Quotas::new([Quota::per_second(2).burst(5)]).unwrap());
    assert_eq!(small.allow("l").await.unwrap().remaining(), 4);
}
