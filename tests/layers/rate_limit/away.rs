//! When the store is away: refuse, admit, or do with a share.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{
    Quota, Quotas, RateLimitLayer, Refusal, RefusalKind, Store, StoreFailure, TokenBucket, TokenBuckets,
};

use crate::probe::Probe;
use crate::stores::{SOON, at_most, away, gone, shared_by};
use support::eventually;
use support::redis_server::RedisServer;

fn everything(_: &u32) -> &'static str {
    "everything"
}

/// How each of the requests, which are their own costs, is refused.
async fn refusals<S>(service: &mut S, requests: &[u32]) -> Vec<Option<RefusalKind>>
where
    S: tower::Service<u32, Response = u32, Error = tower::BoxError>,
{
    let mut kinds = Vec::new();
    for &request in requests {
        let outcome = service.ready().await.unwrap().call(request).await;
        kinds.push(outcome.err().map(|error| error.downcast_ref::<Refusal>().unwrap().kind()));
    }
    kinds
}

const ADMITTED: Option<RefusalKind> = None;
const LIMITED: Option<RefusalKind> = Some(RefusalKind::RateLimited);
const TOO_LARGE: Option<RefusalKind> = Some(RefusalKind::ExceedsBurst);
const AWAY: Option<RefusalKind> = Some(RefusalKind::StoreUnavailable);

#[tokio::test]
async fn refuse_is_the_default_and_tells_the_cause() {
    let mut service = RateLimitLayer::new(at_most(9, &away()), everything).layer(Probe::default());
    // More than enough for the breaker to open.
    assert_eq!(refusals(&mut service, &[1; 6]).await, [AWAY; 6]);
    let error = service.ready().await.unwrap().call(1).await.unwrap_err();
    let refusal = error.downcast_ref::<Refusal>().unwrap();
    assert!(refusal.get_ref().is_unavailable() && !refusal.get_ref().is_refused());
    assert_eq!(refusal.retry_after(), Some(std::time::Duration::from_secs(1)));
    assert!(refusal.decision().is_none());
    assert!(std::error::Error::source(refusal).is_some(), "{refusal:?}");
}

#[tokio::test]
async fn admit_lets_all_through() {
    let layer = RateLimitLayer::new(at_most(2, &away()), everything).cost(|cost: &u32| *cost);
    let layer = layer
        .on_store_failure(StoreFailure::FailOpen)
        .on_admit(|_: &_, _: &mut u32| panic!("nothing was decided"));
    let mut service = layer.layer(Probe::default());
    assert_eq!(refusals(&mut service, &[1, 2, 1, 2, 1]).await, [ADMITTED; 5]);
    assert_eq!(refusals(&mut service, &[3]).await, [TOO_LARGE], "this takes no store to know");
}

#[tokio::test]
async fn admit_still_limits_while_the_store_is_there() {
    let redis = RedisServer::start().await;
    let bucket = at_most(1, &Store::redis(&redis.url()).unwrap());
    let mut service = RateLimitLayer::new(bucket, everything)
        .cache_refusals(false)
        .on_store_failure(StoreFailure::FailOpen)
        .layer(Probe::default());
    assert_eq!(refusals(&mut service, &[1, 1]).await, [ADMITTED, LIMITED]);
    redis.kill9();
    assert_eq!(refusals(&mut service, &[1; 5]).await, [ADMITTED; 5]);
}

#[tokio::test]
async fn degrade_limits_to_the_share() {
    let layer = RateLimitLayer::new(at_most(10, &away()), everything).cost(|cost: &u32| *cost);
    let mut service = layer.on_store_failure(shared_by(4)).layer(Probe::default());
    // A quarter of ten tokens, in whole ones.
    assert_eq!(refusals(&mut service, &[1, 1, 1]).await, [ADMITTED, ADMITTED, LIMITED]);
    assert_eq!(refusals(&mut service, &[3]).await, [AWAY], "more than the share, less than the burst");
    assert_eq!(refusals(&mut service, &[11]).await, [TOO_LARGE]);
}

#[tokio::test]
async fn degrade_leaves_one_token_at_least() {
    let layer = RateLimitLayer::new(at_most(2, &away()), everything).on_store_failure(shared_by(1000));
    assert_eq!(refusals(&mut layer.layer(Probe::default()), &[1, 1]).await, [ADMITTED, LIMITED]);
}

/// Four a second, of which a fourth is one a second. Its breaker is open: with the clock paused, nothing shall wait
/// for a connection.
async fn quick_and_away() -> TokenBucket {
    let bucket = TokenBucket::new(&away(), "quick", Quota::per_second(4)).unwrap();
    for _ in 0..3 {
        assert!(bucket.allow("everything").await.unwrap_err().is_unavailable());
    }
    bucket
}

#[tokio::test(start_paused = true)]
async fn degrade_refills_at_the_share_of_the_rate() {
    let layer = RateLimitLayer::new(quick_and_away().await, everything).on_store_failure(shared_by(4));
    let mut service = layer.layer(Probe::default());
    assert_eq!(refusals(&mut service, &[1, 1]).await, [ADMITTED, LIMITED]);
    tokio::time::advance(Duration::from_millis(999)).await;
    assert_eq!(refusals(&mut service, &[1]).await, [LIMITED]);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(refusals(&mut service, &[1, 1]).await, [ADMITTED, LIMITED]);
}

#[tokio::test(start_paused = true)]
async fn degrade_waits_where_the_layer_waits() {
    // `max_wait` comes last: the order of settings makes no difference.
    let layer = RateLimitLayer::new(quick_and_away().await, everything).on_store_failure(shared_by(4));
    let mut service = layer.max_wait(Duration::from_secs(2)).layer(Probe::default());
    let began = Instant::now();
    for seconds in 0..3 {
        assert_eq!(refusals(&mut service, &[1]).await, [ADMITTED]);
        assert_eq!(began.elapsed().as_secs(), seconds);
    }
}

#[tokio::test]
async fn degrade_goes_by_the_quotas_of_the_request() {
    let eight = Quotas::new([Quota::per_hour(1).burst(8)]).unwrap();
    let layer = RateLimitLayer::new(at_most(2, &away()), everything)
        .quotas(move |_: &u32| eight.clone())
        .on_store_failure(shared_by(4));
    assert_eq!(refusals(&mut layer.layer(Probe::default()), &[1; 3]).await, [ADMITTED, ADMITTED, LIMITED]);
}

#[tokio::test]
async fn clones_degrade_to_one_share() {
    let layer = RateLimitLayer::new(at_most(4, &away()), everything).on_store_failure(shared_by(2));
    let (mut one, mut other) = (layer.layer(Probe::default()), layer.clone().layer(Probe::default()));
    assert_eq!(refusals(&mut one, &[1]).await, [ADMITTED]);
    assert_eq!(refusals(&mut other, &[1, 1]).await, [ADMITTED, LIMITED]);
    assert_eq!(refusals(&mut one, &[1]).await, [LIMITED]);
}

#[tokio::test]
async fn degrade_ends_with_the_outage() {
    let redis = RedisServer::start().await;
    redis.kill9();
    let bucket = at_most(100, &Store::redis(&redis.url()).unwrap());
    let layer = RateLimitLayer::new(bucket.clone(), everything).on_store_failure(shared_by(100));
    let mut service = layer.layer(Probe::default());
    assert_eq!(refusals(&mut service, &[1, 1]).await, [ADMITTED, LIMITED]);
    redis.restart().await;
    eventually("the whole limit", SOON, async || refusals(&mut service, &[1]).await == [ADMITTED]).await;
    assert!(bucket.peek("everything").await.unwrap().remaining() < 100);
}

/// How many of ten requests to each of several services are admitted.
async fn admitted<S>(services: &mut [S]) -> usize
where
    S: tower::Service<u32, Response = u32, Error = tower::BoxError>,
{
    let mut admitted = 0;
    for _ in 0..10 {
        for service in &mut *services {
            admitted += refusals(service, &[1]).await.iter().filter(|refusal| refusal.is_none()).count();
        }
    }
    admitted
}

/// A layer of one's own is no bucket of one's own: also not by a value of its own, and not beside other limits.
#[tokio::test]
async fn routes_with_one_bucket_share_it_in_an_outage() {
    let store = gone().await;
    let bucket = at_most(10, &store);
    let route = |bucket: TokenBucket| RateLimitLayer::new(bucket, everything).on_store_failure(shared_by(2));
    let routes = [route(bucket.clone()), route(bucket), route(at_most(10, &store))];
    assert_eq!(admitted(&mut routes.map(|route| route.layer(Probe::default()))).await, 5);

    let other = TokenBucket::new(&store, "other", Quota::per_hour(1).burst(100)).unwrap();
    let limits = TokenBuckets::new([other, at_most(10, &store)]).unwrap();
    let several = RateLimitLayer::all_of(limits, (everything, everything)).on_store_failure(shared_by(2));
    assert_eq!(admitted(&mut [several.layer(Probe::default())]).await, 0);
}

/// Of different numbers of processes, the one with the smallest share counts for all.
#[tokio::test]
async fn the_smallest_share_of_a_bucket_counts() {
    let store = gone().await;
    let routes = [2, 5].map(|replicas| {
        RateLimitLayer::new(at_most(10, &store), everything).on_store_failure(shared_by(replicas))
    });
    assert_eq!(admitted(&mut routes.map(|route| route.layer(Probe::default()))).await, 2);
}

/// Each process takes its part of what was counted last, and no more than by `at_least`.
#[tokio::test]
async fn a_counted_share_is_divided_by_the_processes_that_were_counted() {
    let counted = |replicas, at_least| StoreFailure::CountedShare {
        replicas: NonZeroU32::new(replicas).unwrap(),
        at_least: NonZeroU32::new(at_least).unwrap(),
    };
    let limit = |store: &Store, sharing| {
        RateLimitLayer::new(at_most(24, store), everything).on_store_failure(sharing).layer(Probe::default())
    };
    // Nothing was counted.
    let first = gone().await;
    assert_eq!(admitted(&mut [limit(&first, counted(4, 1))]).await, 6);

    let redis = RedisServer::start().await;
    let members = async || redis.query::<i64>(&["ZCARD", "td:{requests:}:members"]).unwrap();
    let mut processes = Vec::new();
    for number in 1..=8 {
        let store = Store::redis(&redis.url()).unwrap();
        processes.push((limit(&store, counted(1, 3)), store));
        eventually("the process is counted", SOON, async || members().await == number).await;
    }
    let (mut last, _) = processes.pop().unwrap();
    let (mut early, _) = processes.remove(1);
    // Its answer may still be on the way.
    last.ready().await.unwrap().call(1).await.unwrap();
    redis.kill9();
    assert_eq!(admitted(&mut [last]).await, 3, "an eighth");
    assert_eq!(
        refusals(&mut early, &[1; 9]).await[7..],
        [ADMITTED, LIMITED],
        "a third, though it knows of two"
    );
}
