//! Costs and holds of several limits, a number each: all or none.

use std::time::Duration;

use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};

use crate::stores::SOON;
use support::eventually;

/// Requests and tokens.
fn limits(store: &Store, name: &str) -> ([TokenBucket; 2], TokenBuckets<2>) {
    let bucket = |ending, burst| {
        TokenBucket::new(
            store,
            &format!("{name}-{ending}"),
            Quota::per_hour(1).burst(burst),
        )
        .unwrap()
    };
    let buckets = [bucket("requests", 100), bucket("tokens", 2000)];
    let limits = TokenBuckets::new(buckets.clone()).unwrap();
    (buckets, limits)
}

/// Waits until so much is held of each limit, and so much is left.
async fn comes_to(buckets: &[TokenBucket; 2], key: &str, held: [u32; 2], left: [u32; 2]) {
    for limit in 0..2 {
        let what = format!(
            "{} of limit {limit} held, {} left",
            held[limit], left[limit]
        );
        eventually(&what, SOON, async || {
            let state = buckets[limit].peek(key).await.unwrap();
            (state.held(), state.remaining()) == (held[limit], left[limit])
        })
        .await;
    }
}

pub(crate) async fn each_limit_has_its_own_cost(store: &Store, name: &str) {
    let (buckets, limits) = limits(store, name);
    let decision = limits.allow_n(["k", "k"], [1, 1200]).await.unwrap();
    assert!(decision.is_admitted() && decision.cost == 1200);
    let refused = limits.allow_n(["k", "k"], [1, 1200]).await.unwrap();
    assert_eq!(
        (refused.refused_by(), refused.cost),
        (Some(format!("{name}-tokens").as_str()), 1200)
    );
    let after = refused.retry_after().unwrap();
    assert!(
        399 * 3600 < after.as_secs() && after.as_secs() <= 400 * 3600,
        "{after:?}"
    );
    let refused = limits.allow_n(["k", "k"], [100, 1]).await.unwrap();
    assert_eq!(
        (refused.refused_by(), refused.cost),
        (Some(format!("{name}-requests").as_str()), 100)
    );
    comes_to(&buckets, "k", [0, 0], [99, 800]).await;
    // What costs nothing is not asked.
    buckets[0]
        .block_for("k", Duration::from_secs(60))
        .await
        .unwrap();
    assert!(
        limits
            .allow_n(["k", "k"], [0, 799])
            .await
            .unwrap()
            .is_admitted()
    );
    assert!(
        limits
            .allow_n([None, Some("k")], [1, 1])
            .await
            .unwrap()
            .is_admitted(),
        "nor without a key"
    );
    assert!(
        limits
            .allow_n(["k", "k"], [0, 0])
            .await
            .unwrap()
            .is_admitted()
    );
    let refused = limits.allow_n(["k", "k"], [1, 1]).await.unwrap();
    assert_eq!(
        refused.refused_by(),
        Some(format!("{name}-requests").as_str())
    );
    let error = limits.allow_n(["k", "k"], [101, 5]).await.unwrap_err();
    assert!(
        error.is_exceeds_limit() && error.to_string().contains("101"),
        "{error}"
    );
}

pub(crate) async fn all_limits_are_held_or_none(store: &Store, name: &str) {
    let (buckets, limits) = limits(store, name);
    let hold = limits.authorize(["k", "k"], [1, 1200]).await.unwrap();
    assert_eq!((hold.held(), hold.is_held()), ([1, 1200], true));
    comes_to(&buckets, "k", [1, 1200], [99, 800]).await;
    let refused = limits.authorize(["k", "k"], [1, 1200]).await.unwrap_err();
    let decision = refused.decision().unwrap();
    assert_eq!(
        decision.refused_by(),
        Some(format!("{name}-tokens").as_str())
    );
    assert!(refused.is_refused() && refused.retry_after().is_some());
    assert!(
        !limits
            .allow_n(["k", "k"], [1, 801])
            .await
            .unwrap()
            .is_admitted()
    );
    // In order, the request is given back in the background.
    comes_to(&buckets, "k", [1, 1200], [99, 800]).await;
    let [requests, tokens] = hold.capture([1, 831]).await.unwrap();
    assert_eq!(
        (requests.charged, requests.excess, requests.ended),
        (1, 0, false)
    );
    assert_eq!(
        (tokens.charged, tokens.excess, tokens.ended),
        (831, 0, false)
    );
    assert_eq!(
        (requests.state.remaining(), tokens.state.remaining()),
        (99, 1169)
    );
    assert!(
        limits
            .authorize(["k", "k"], [9, 100])
            .await
            .unwrap()
            .release()
            .await
            .unwrap()
    );
    comes_to(&buckets, "k", [0, 0], [99, 1169]).await;
    for (amounts, told) in [([0, 5], "0"), ([5, 0], "0"), ([1, 2001], "2001")] {
        let error = limits.authorize(["k", "k"], amounts).await.unwrap_err();
        assert!(error.is_invalid() || error.is_exceeds_limit(), "{error}");
        assert!(error.to_string().contains(told), "{error}");
    }
    // A limit without a key is neither held nor charged.
    let hold = limits.authorize([None, Some("k")], [9, 100]).await.unwrap();
    assert_eq!(hold.held(), [0, 100]);
    let [requests, tokens] = hold.capture([9, 169]).await.unwrap();
    assert_eq!(
        (requests.charged, tokens.charged, tokens.excess),
        (0, 169, 69)
    );
    comes_to(&buckets, "k", [0, 0], [99, 1000]).await;
}
