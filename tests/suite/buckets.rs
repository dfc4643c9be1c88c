//! One caller at a time.

use std::time::{Duration, Instant};

use tower_distributed::{Quota, Store, TokenBucket};

pub(crate) async fn a_burst_is_admitted_and_the_rest_refused(store: &Store, name: &str) {
    let bucket = TokenBucket::new(store, name, Quota::per_hour(60).burst(3)).unwrap();
    for left in (0..3).rev() {
        let decision = bucket.allow("k").await.unwrap();
        assert!(decision.is_admitted() && decision.delay().is_zero());
        assert_eq!(
            (decision.state.tightest().limit, decision.remaining()),
            (3, left)
        );
    }
    for _ in 0..3 {
        let refused = bucket.allow("k").await.unwrap();
        assert!(!refused.is_admitted());
        let retry = refused.retry_after().unwrap();
        assert!(
            retry > Duration::from_secs(50) && retry <= Duration::from_secs(60),
            "{retry:?}"
        );
    }
    assert_eq!(bucket.peek("k").await.unwrap().remaining(), 0);
    bucket.reset("k").await.unwrap();
    assert_eq!(bucket.peek("k").await.unwrap().remaining(), 3);
    assert!(bucket.allow_n("k", 3).await.unwrap().is_admitted());
    assert!(bucket.allow_n("k", 4).await.unwrap_err().is_exceeds_limit());
}

pub(crate) async fn what_never_refills_stays_used_up(store: &Store, name: &str) {
    let bucket = TokenBucket::new(store, name, Quota::non_refilling(2)).unwrap();
    assert!(bucket.allow_n("k", 2).await.unwrap().is_admitted());
    let refused = bucket.allow("k").await.unwrap();
    assert!(!refused.is_admitted());
    assert_eq!(
        (refused.retry_after(), refused.state.reset_after()),
        (None, None)
    );
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
    assert!(
        began.elapsed() >= Duration::from_millis(149),
        "{:?}",
        began.elapsed()
    );

    let slow = TokenBucket::new(store, &format!("{name}.slow"), Quota::per_hour(1)).unwrap();
    let slow = slow.with_max_wait(Duration::from_secs(60));
    slow.wait("k").await.unwrap();
    let error = slow.wait("k").await.unwrap_err();
    assert!(
        error.is_refused()
            && error.decision().unwrap().retry_after() > Some(Duration::from_secs(3000))
    );
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
