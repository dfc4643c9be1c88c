//! Holds of several limits in one store, and in different stores.

use futures::poll;

use crate::bucket::holds::OnEnd;
use crate::bucket::quota::Quota;
use crate::bucket::tests::fixtures;
use crate::key::Key;
use crate::store::Store;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::limits::TokenBuckets;
use support::patient;
use support::redis_server::RedisServer;

/// Two limits.
fn limits(store: impl Fn() -> Store) -> ([TokenBucket; 2], TokenBuckets<2>) {
    let bucket = |name| TokenBucket::new(&store(), name, Quota::per_hour(1).burst(1000)).unwrap();
    let buckets = ["requests", "tokens"].map(bucket);
    let limits = TokenBuckets::new(buckets.clone()).unwrap();
    (buckets, limits)
}

/// Two limits in different stores, which are decided one after the other.
fn apart() -> ([TokenBucket; 2], TokenBuckets<2>) {
    limits(Store::in_memory)
}

/// Two limits in one store, which are decided in one operation.
fn together() -> ([TokenBucket; 2], TokenBuckets<2>) {
    let store = Store::in_memory();
    limits(|| store.clone())
}

/// The held and the remaining tokens of each limit.
async fn left(buckets: &[TokenBucket; 2]) -> [(u32, u32); 2] {
    [
        fixtures::left(&buckets[0]).await,
        fixtures::left(&buckets[1]).await,
    ]
}

#[tokio::test]
async fn limits_in_different_stores_are_extended_all_or_none() {
    let (buckets, limits) = apart();
    let mut hold = limits.authorize(["k", "k"], [1, 600]).await.unwrap();
    let other = limits.authorize(["k", "k"], [1, 300]).await.unwrap();
    let refused = hold.extend([5, 200]).await.unwrap_err();
    assert_eq!(refused.decision().unwrap().refused_by(), Some("tokens"));
    assert_eq!(
        (hold.held(), left(&buckets).await),
        ([1, 600], [(2, 998), (900, 100)])
    );
    hold.extend([0, 100]).await.unwrap();
    assert_eq!(
        (hold.held(), left(&buckets).await),
        ([1, 700], [(2, 998), (1000, 0)])
    );
    other.release().await.unwrap();
    // Of what both holds of a limit have, the first is used first.
    let [_, tokens] = hold.capture([1, 650]).await.unwrap();
    assert_eq!(
        (tokens.charged, tokens.excess, tokens.ended),
        (650, 0, false)
    );
    assert_eq!(left(&buckets).await, [(0, 999), (0, 350)]);
}

#[tokio::test]
async fn limits_in_different_stores_that_are_dropped_end_as_they_say() {
    let (buckets, limits) = apart();
    let mut hold = limits.authorize(["k", "k"], [1, 600]).await.unwrap();
    hold.extend([0, 100]).await.unwrap();
    hold.usage()[1].add(650);
    drop(hold);
    assert_eq!(
        left(&buckets).await,
        [(0, 999), (0, 350)],
        "what was not counted is charged as it was held"
    );
    let limits = TokenBuckets::new(
        buckets
            .each_ref()
            .map(|bucket| bucket.with_on_end(OnEnd::Release)),
    )
    .unwrap();
    let hold = limits.authorize(["k", "k"], [1, 300]).await.unwrap();
    hold.usage()[0].set(1);
    drop(hold);
    assert_eq!(left(&buckets).await, [(0, 998), (0, 350)]);
}

#[tokio::test]
async fn limits_without_a_key_are_not_held() {
    for (buckets, limits) in [apart(), together()] {
        let mut hold = limits.authorize([None, Some("k")], [1, 600]).await.unwrap();
        assert_eq!(
            (hold.held(), left(&buckets).await),
            ([0, 600], [(0, 1000), (600, 400)])
        );
        assert_eq!(hold.decision().state.balances().count(), 1);
        hold.extend([1000, 50]).await.unwrap();
        assert_eq!(
            (hold.held(), left(&buckets).await),
            ([0, 650], [(0, 1000), (650, 350)])
        );
        assert!(hold.extend([0, 351]).await.unwrap_err().is_exceeds_limit());
        hold.extend([0, 350]).await.unwrap();
        let [requests, tokens] = hold.capture([5, 20]).await.unwrap();
        assert_eq!(
            (requests.charged, requests.excess, requests.ended),
            (0, 0, false)
        );
        assert_eq!((requests.state.remaining(), tokens.charged), (1000, 20));
        assert_eq!(left(&buckets).await, [(0, 1000), (0, 980)]);

        let mut none = limits
            .authorize([None::<Key>, None], [1, 600])
            .await
            .unwrap();
        assert!(none.decision().is_admitted() && none.decision().remaining() == 1000);
        none.extend(5).await.unwrap();
        assert!(none.is_held() && poll!(Box::pin(none.lost())).is_pending());
        assert!(none.release().await.unwrap());
        assert_eq!(left(&buckets).await, [(0, 1000), (0, 980)]);
    }
}

#[tokio::test]
async fn several_holds_are_lost_with_one_of_them() {
    let (buckets, limits) = together();
    for extends in [true, false] {
        let mut hold = limits.authorize(["k", "k"], [1, 600]).await.unwrap();
        assert!(hold.is_held() && poll!(Box::pin(hold.lost())).is_pending());
        buckets[0].reset("k").await.unwrap();
        if extends {
            assert!(hold.extend(1).await.unwrap_err().is_lost());
            assert_eq!(hold.held(), [1, 600]);
            assert!(!hold.is_held() && poll!(Box::pin(hold.lost())).is_ready());
        }
        let [requests, tokens] = hold.capture([3, 20]).await.unwrap();
        assert_eq!([requests.ended, tokens.ended], [true, false]);
        assert_eq!(
            (requests.charged, requests.excess, tokens.charged),
            (3, 2, 20)
        );
        assert_eq!(
            (requests.state.remaining(), tokens.state.remaining()),
            (998, 980)
        );
        assert_eq!(left(&buckets).await, [(0, 998), (0, 980)]);
        buckets[0].reset("k").await.unwrap();
        buckets[1].reset("k").await.unwrap();
    }
    let hold = limits.authorize(["k", "k"], [1, 600]).await.unwrap();
    buckets[1].reset("k").await.unwrap();
    assert!(!hold.release().await.unwrap());
}

/// Each extension is another hold.
#[tokio::test]
async fn a_capture_of_limits_in_different_stores_says_if_a_part_had_ended() {
    let (buckets, limits) = apart();
    let mut hold = limits.authorize(["k", "k"], [1, 600]).await.unwrap();
    buckets[1].reset("k").await.unwrap();
    hold.extend([0, 100]).await.unwrap();
    let [requests, tokens] = hold.capture([1, 650]).await.unwrap();
    assert_eq!((requests.ended, tokens.ended), (false, true));
    // The rest, which the first hold does not cover.
    assert_eq!(
        (tokens.charged, left(&buckets).await),
        (50, [(0, 999), (0, 950)])
    );
}

#[tokio::test]
async fn limits_in_one_store_are_held_and_captured_in_one_operation() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let (buckets, limits) = limits(|| store.clone());
    for drops in [false, true] {
        let hold = limits.authorize(["k", "k"], [1, 600]).await.unwrap();
        if drops {
            drop(hold);
            store.owed().unwrap().none().await;
        } else {
            hold.capture([1, 200]).await.unwrap();
        }
    }
    assert_eq!(store.stats().operations, 4);
    assert_eq!(left(&buckets).await, [(0, 998), (0, 200)]);
}
