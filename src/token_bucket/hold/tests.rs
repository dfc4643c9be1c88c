use std::time::Duration;

use super::*;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::bucket::tests::fixtures::left;
use crate::store::Store;

const ENDS: [OnEnd; 2] = [OnEnd::Capture, OnEnd::Release];

fn hourly(store: &Store) -> TokenBucket {
    TokenBucket::new(store, "tokens", Quota::per_hour(1).burst(1000)).unwrap()
}

#[tokio::test]
async fn amounts_that_can_never_be_held_are_errors() {
    let bucket = hourly(&Store::in_memory());
    let none = bucket.authorize("k", 0).await.unwrap_err();
    assert!(
        none.is_invalid() && none.to_string().contains("must be 1 to 1000"),
        "{none}"
    );
    let mut hold = bucket.authorize("k", 999).await.unwrap();
    for (much, told) in [
        (bucket.authorize("k", 1001).await.unwrap_err(), "1001"),
        (hold.extend(2).await.unwrap_err(), "1001"),
        (hold.extend(u32::MAX).await.unwrap_err(), ""),
    ] {
        assert!(much.is_exceeds_limit(), "{much}");
        assert!(much.to_string().contains(told), "{much}");
    }
    hold.extend(1).await.unwrap();
    assert_eq!(
        (hold.held(), hold.state().held(), left(&bucket).await),
        (1000, 1000, (1000, 0))
    );
    let refused = bucket.authorize("k", 1000).await.unwrap_err();
    assert!(refused.is_refused() && refused.decision().unwrap().cost == 1000);
}

#[tokio::test]
async fn holds_have_bounded_ttls() {
    let bucket = hourly(&Store::in_memory());
    assert_eq!(bucket.holding.ttl, 30_000_000);
    let millis = |ttl| {
        bucket
            .with_hold_ttl(Duration::from_millis(ttl))
            .map(|bucket| bucket.holding.ttl)
    };
    for ttl in [99, 86_400_001] {
        assert!(millis(ttl).is_err_and(|error| error.to_string().contains("100 ms to 24 h")));
    }
    assert_eq!(
        [millis(100), millis(86_400_000)].map(Result::unwrap),
        [100_000, 86_400_000_000]
    );
    let both = bucket
        .with_on_end(OnEnd::Release)
        .with_hold_ttl(Duration::from_secs(1))
        .unwrap();
    assert_eq!(
        (both.holding.on_end, both.holding.ttl),
        (Some(OnEnd::Release), 1_000_000)
    );
    assert_eq!(both.with_on_end(OnEnd::Capture).holding.ttl, 1_000_000);
}

/// A crash does not use up a credit that never refills.
#[test]
fn what_never_refills_is_released_by_default() {
    let sets: [(&[Quota], OnEnd); 3] = [
        (&[Quota::per_hour(1)], OnEnd::Capture),
        (
            &[Quota::per_hour(1), Quota::non_refilling(5)],
            OnEnd::Release,
        ),
        (&[Quota::per_calendar_day(5)], OnEnd::Capture),
    ];
    for (quotas, expected) in sets {
        let quotas = Quotas::new(quotas.iter().cloned()).unwrap();
        let bucket = TokenBucket::new(&Store::in_memory(), "tokens", quotas.clone()).unwrap();
        assert_eq!(bucket.holding.on_end(&quotas), expected);
        assert_eq!(
            ENDS.map(|on_end| bucket.with_on_end(on_end).holding.on_end(&quotas)),
            ENDS
        );
    }
}

/// The end of the hold has charged its amount, or nothing.
#[tokio::test]
async fn a_capture_after_the_end_charges_what_the_end_did_not() {
    // The amount to capture; charged, excess, and left. Then the same if it is captured only if held.
    let cases = [
        (OnEnd::Capture, 500, (600, 0, 1000), (600, 0, 1000)),
        (OnEnd::Capture, 700, (700, 100, 900), (600, 0, 1000)),
        (OnEnd::Release, 500, (500, 500, 500), (0, 0, 1000)),
    ];
    let bucket = hourly(&Store::in_memory());
    for (on_end, n, any, if_held) in cases {
        let bucket = bucket.with_on_end(on_end);
        let authorize = async || bucket.authorize("k", 600).await.unwrap();
        for (any_time, expected) in [(true, any), (false, if_held)] {
            let hold = authorize().await;
            hold.usage().set(n);
            bucket.reset("k").await.unwrap();
            drop(hold);
            assert_eq!(left(&bucket).await, (0, any.2), "as its drop");

            bucket.reset("k").await.unwrap();
            let hold = authorize().await;
            bucket.reset("k").await.unwrap();
            let captured = match any_time {
                true => hold.capture(n).await.unwrap(),
                false => hold.capture_if_held(n).await.unwrap(),
            };
            let told = (
                captured.charged,
                captured.excess,
                captured.state.remaining(),
            );
            assert_eq!(
                (told, captured.ended),
                (expected, true),
                "{on_end:?} {n} {any_time}"
            );
            bucket.reset("k").await.unwrap();
        }
        let captured = authorize().await.capture(n).await.unwrap();
        assert_eq!(
            (captured.charged, captured.excess),
            (n, n.saturating_sub(600))
        );
        assert_eq!(
            (captured.ended, captured.state.remaining()),
            (false, 1000 - n)
        );
        bucket.reset("k").await.unwrap();
    }
}

/// Late tokens are charged by a call that must run once, and the client of a Cluster repeats calls.
#[cfg(all(feature = "cluster", feature = "pools"))]
#[tokio::test]
async fn late_tokens_are_charged_only_by_clients_that_do_not_repeat_calls() {
    let cluster = Store::from(support::pools::pool_of_cluster([
        "redis://127.0.0.1:1".to_owned()
    ]));
    for (store, late) in [(Store::in_memory(), [100, 700]), (cluster, [0, 0])] {
        let hold = |on_end| {
            let (bucket, now) = (hourly(&store).with_on_end(on_end), clock::now());
            let state = Decision::free(bucket.quotas.clone()).state;
            bucket.held(Key::from("k"), (1, 600), Usage::default(), now, state)
        };
        assert_eq!(ENDS.map(|on_end| hold(on_end).late(700)), late);
    }
}
