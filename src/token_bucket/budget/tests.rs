use futures::poll;
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::*;
use crate::token_bucket::fixtures::left;
use crate::{Key, Quota, RefusalKind, Store};
use Estimate::{Fixed, Metered};

/// Two limits of 1000 tokens.
fn two() -> ([TokenBucket; 2], TokenBuckets<2>) {
    let store = Store::in_memory();
    let bucket = |name| TokenBucket::new(&store, name, Quota::non_refilling(1000)).unwrap();
    let buckets = ["requests", "tokens"].map(bucket);
    (buckets.clone(), TokenBuckets::new(buckets).unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_estimate_is_held_and_the_usage_captured() {
    // What is asked of which limits; what is held of both, and what is charged for a usage of 20.
    type Case<'a> = (&'a Limiter, &'a [Estimate], [u32; 2], [u32; 2]);
    let (buckets, limits) = two();
    let (one, all) = (Limiter::One(buckets[1].clone()), Limiter::All(limits.several().clone()));
    let cases: [Case<'_>; 6] = [
        (&one, &[Metered(600)], [0, 600], [0, 20]),
        (&one, &[Metered(0)], [0, 1], [0, 20]),
        (&all, &[Fixed(3), Metered(600)], [3, 600], [3, 20]),
        (&all, &[Fixed(1), Metered(0)], [1, 1], [1, 20]),
        (&all, &[Fixed(0), Metered(9)], [0, 9], [0, 20]),
        (&all, &[Metered(7), Fixed(0)], [7, 0], [20, 0]),
    ];
    for (limits, estimates, held, used) in cases {
        let key = || if let Limiter::One(_) = limits { Key::from("k") } else { Key::of(["k", "k"]) };
        let hold = estimate::hold(limits, key(), estimates).await.unwrap();
        let states = [left(&buckets[0]).await, left(&buckets[1]).await];
        assert_eq!(states, held.map(|held| (held, 1000 - held)), "{estimates:?}");
        assert!(hold.decision().is_admitted() && hold.decision().cost == *held.iter().max().unwrap());
        assert!(hold.decision().key.is_some() && hold.usage().get().is_none());
        hold.usage().set(20);
        drop(hold);
        let states = [left(&buckets[0]).await, left(&buckets[1]).await];
        assert_eq!(states, used.map(|used| (0, 1000 - used)), "{estimates:?}");

        let hold = estimate::hold(limits, key(), estimates).await.unwrap();
        assert!(poll!(Box::pin(hold.lost())).is_pending());
        for bucket in &buckets {
            bucket.reset("k").await.unwrap();
        }
        hold.lost().await;
        drop(hold);
        for bucket in &buckets {
            bucket.reset("k").await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_request_is_charged_what_its_service_and_its_response_say() {
    type Call = (Option<&'static str>, bool);
    let bucket = &two().0[1];
    let budget = BudgetLayer::new(bucket.clone(), |call: &Call| call.0, |_: &Call| 600)
        .on_hold(|usage: &Usage, _: &mut Call| usage.add(2))
        .meter(|response: &u32, usage: &Usage| usage.add(*response));
    let service = budget.layer(service_fn(async |(key, fails): Call| {
        assert_eq!(left(bucket).await.0, if key.is_some() { 600 } else { 0 });
        if fails { Err("it fails") } else { Ok(30) }
    }));
    let call =
        async |key, fails| service.clone().oneshot((key, fails)).await.map_err(|error| error.to_string());
    assert_eq!((call(None, false).await, left(bucket).await), (Ok(30), (0, 1000)), "without a hold");
    assert_eq!((call(Some("k"), false).await, left(bucket).await), (Ok(30), (0, 968)));
    assert_eq!((call(Some("k"), true).await, left(bucket).await), (Err("it fails".into()), (0, 966)));
    bucket.charge("k", 367).await.unwrap();
    let refused = service.clone().oneshot((Some("k"), false)).await.unwrap_err();
    let refusal = refused.downcast_ref::<crate::Refusal>().unwrap();
    assert_eq!((refusal.kind(), left(bucket).await), (RefusalKind::RateLimited, (0, 599)));
}
