//! Several limits over different keys: charged all or none.

use std::task::Poll;

use futures::future::join_all;
use futures::poll;
use tower_distributed::{Key, Quota, Store, TokenBucket, TokenBuckets};

use crate::stores::SOON;
use support::eventually;

/// One limit per user, one per tenant, and one for all.
fn limits(store: &Store, name: &str, bursts: [u32; 3]) -> ([TokenBucket; 3], TokenBuckets<3>) {
    let mut number = 0;
    let buckets = bursts.map(|burst| {
        number += 1;
        TokenBucket::new(store, &format!("{name}{number}"), Quota::per_hour(1).burst(burst)).unwrap()
    });
    let limits = TokenBuckets::new(buckets.clone()).unwrap();
    (buckets, limits)
}

async fn left(bucket: &TokenBucket, key: &str) -> u32 {
    bucket.peek(key).await.unwrap().remaining()
}

pub(crate) async fn all_limits_are_charged_or_none(store: &Store, name: &str) {
    let ([users, tenants, all], limits) = limits(store, name, [9, 3, 9]);
    for _ in 0..3 {
        assert!(limits.allow(["ann", "acme", "-"]).await.unwrap().is_admitted());
    }
    let refused = limits.allow(["ann", "acme", "-"]).await.unwrap();
    assert_eq!(refused.refused_by(), Some(format!("{name}2").as_str()));
    assert!(refused.retry_after().is_some_and(|after| after.as_secs() > 3000), "{refused:?}");
    eventually("nothing of it is charged", SOON, async || left(&users, "ann").await == 6).await;
    assert_eq!([left(&tenants, "acme").await, left(&all, "-").await], [0, 6]);
    // Who has no tenant is not asked for one.
    let decision = limits.allow([Some("ann"), None, Some("-")]).await.unwrap();
    assert!(decision.is_admitted());
    assert_eq!([left(&users, "ann").await, left(&all, "-").await], [5, 5]);
    // They are the buckets of those who use one alone.
    assert!(users.allow_n("ann", 5).await.unwrap().is_admitted());
    let refused = limits.allow(["ann", "other", "-"]).await.unwrap();
    assert_eq!(refused.refused_by(), Some(format!("{name}1").as_str()));
    assert!(limits.allow_n(["bob", "b", "-"], 4).await.unwrap_err().is_exceeds_limit());
}

pub(crate) async fn a_crowd_on_several_limits_gets_the_least(store: &Store, name: &str) {
    let ([users, _, all], limits) = limits(store, name, [2, 500, 300]);
    // Each user one request after the other: on a Cluster what has come after a charge keeps it from being taken back.
    let caller = |user: usize| {
        let limits = limits.clone();
        async move {
            let keys = [format!("user-{user}"), format!("tenant-{}", user % 3), "-".to_owned()];
            let mut admitted = 0;
            for _ in 0..4 {
                let decision = limits.allow(keys.clone()).await.unwrap();
                assert_eq!(decision.is_admitted(), decision.refused_by().is_none());
                admitted += u32::from(decision.is_admitted());
            }
            admitted
        }
    };
    let admitted = join_all((0..200).map(caller)).await;
    assert!(admitted.iter().all(|of_user| *of_user <= 2), "{admitted:?}");
    assert_eq!((admitted.iter().sum::<u32>(), left(&all, "-").await), (300, 0));
    // What was refused by the last is not charged to the first.
    eventually("each user has been charged for what was admitted", SOON, async || {
        let mut charged = 0;
        for user in 0..200 {
            charged += 2 - left(&users, &format!("user-{user}")).await;
        }
        charged == 300
    })
    .await;
}

pub(crate) async fn who_goes_away_is_charged_nowhere(store: &Store, name: &str) {
    let (buckets, limits) = limits(store, name, [100, 100, 100]);
    for n in 0..10 {
        let key = Key::from(n);
        // Polled once, so under way, and then dropped.
        let mut asking = Box::pin(limits.allow([&key, &key, &key]));
        if let Poll::Ready(decided) = poll!(asking.as_mut()) {
            // As in memory: its answer is known, and there is nothing to give back.
            assert!(decided.unwrap().is_admitted());
            continue;
        }
        drop(asking);
        for bucket in &buckets {
            let whole = async || bucket.peek(&key).await.unwrap().remaining() == 100;
            eventually("all is given back", SOON, whole).await;
        }
    }
}
