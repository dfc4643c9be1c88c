//! When the store is away: admit, or do with a share.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{
    Quota, Quotas, RateLimitLayer, Refusal, RefusalKind, Store, StoreFailure, TokenBucket,
    TokenBuckets,
};

use crate::probe::Probe;
use crate::stores::{SOON, at_most, away, gone, shared_by};
use support::redis_server::RedisServer;
use support::{eventually, patient};

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
        kinds.push(
            outcome
                .err()
                .map(|error| error.downcast_ref::<Refusal>().unwrap().kind()),
        );
    }
    kinds
}

const ADMITTED: Option<RefusalKind> = None;
const LIMITED: Option<RefusalKind> = Some(RefusalKind::RateLimited);
const TOO_LARGE: Option<RefusalKind> = Some(RefusalKind::ExceedsBurst);
const AWAY: Option<RefusalKind> = Some(RefusalKind::StoreUnavailable);

/// What each of several requests comes to, by the burst and what is done without the store.
#[tokio::test]
async fn limits_without_the_store() {
    let eight = Quotas::new([Quota::per_hour(1).burst(8)]).unwrap();
    type Case<'a> = (
        u32,
        StoreFailure,
        Option<Quotas>,
        &'a [u32],
        &'a [Option<RefusalKind>],
    );
    let cases: [Case<'_>; 4] = [
        // What can never be admitted takes no store to know.
        (
            2,
            StoreFailure::FailOpen,
            None,
            &[1, 2, 1, 2, 3],
            &[ADMITTED, ADMITTED, ADMITTED, ADMITTED, TOO_LARGE],
        ),
        // A quarter of ten tokens, in whole ones; three are more than the share, and less than the burst.
        (
            10,
            shared_by(4),
            None,
            &[1, 1, 1, 3, 11],
            &[ADMITTED, ADMITTED, LIMITED, AWAY, TOO_LARGE],
        ),
        // One token at least.
        (2, shared_by(1000), None, &[1, 1], &[ADMITTED, LIMITED]),
        // By the quotas of the request.
        (
            2,
            shared_by(4),
            Some(eight),
            &[1, 1, 1],
            &[ADMITTED, ADMITTED, LIMITED],
        ),
    ];
    for (burst, on_store_failure, quotas, requests, expected) in cases {
        let layer =
            RateLimitLayer::new(at_most(burst, &away()), everything).cost(|cost: &u32| *cost);
        let layer = layer
            .quotas(move |_: &u32| quotas.clone())
            .on_store_failure(on_store_failure);
        assert_eq!(
            refusals(&mut layer.layer(Probe::default()), requests).await,
            expected,
            "{requests:?}"
        );
    }
}

/// Four a second, of which a fourth is one a second. Its breaker is open: with the clock paused, nothing shall wait
/// for a connection.
async fn quick_and_away() -> TokenBucket {
    let bucket = TokenBucket::new(&away(), "quick", Quota::per_second(4)).unwrap();
    for _ in 0..3 {
        assert!(
            bucket
                .allow("everything")
                .await
                .unwrap_err()
                .is_unavailable()
        );
    }
    bucket
}

#[tokio::test(start_paused = true)]
async fn degrade_refills_at_the_share_of_the_rate() {
    let layer =
        RateLimitLayer::new(quick_and_away().await, everything).on_store_failure(shared_by(4));
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
    let layer =
        RateLimitLayer::new(quick_and_away().await, everything).on_store_failure(shared_by(4));
    let mut service = layer
        .max_wait(Duration::from_secs(2))
        .layer(Probe::default());
    let began = Instant::now();
    for seconds in 0..3 {
        assert_eq!(refusals(&mut service, &[1]).await, [ADMITTED]);
        assert_eq!(began.elapsed().as_secs(), seconds);
    }
}

/// How many of ten requests to each of several services are admitted.
async fn admitted<S>(services: &mut [S]) -> usize
where
    S: tower::Service<u32, Response = u32, Error = tower::BoxError>,
{
    let mut admitted = 0;
    for _ in 0..10 {
        for service in &mut *services {
            admitted += refusals(service, &[1])
                .await
                .iter()
                .filter(|refusal| refusal.is_none())
                .count();
        }
    }
    admitted
}

/// A layer of one's own is no bucket of one's own: also not by a value of its own, and not beside other limits.
#[tokio::test]
async fn routes_with_one_bucket_share_it_in_an_outage() {
    let store = gone().await;
    let bucket = at_most(10, &store);
    let route = |bucket: TokenBucket| {
        RateLimitLayer::new(bucket, everything).on_store_failure(shared_by(2))
    };
    let routes = [
        route(bucket.clone()),
        route(bucket),
        route(at_most(10, &store)),
    ];
    assert_eq!(
        admitted(&mut routes.map(|route| route.layer(Probe::default()))).await,
        5
    );

    let other = TokenBucket::new(&store, "other", Quota::per_hour(1).burst(100)).unwrap();
    let limits = TokenBuckets::new([other, at_most(10, &store)]).unwrap();
    let several =
        RateLimitLayer::all_of(limits, (everything, everything)).on_store_failure(shared_by(2));
    assert_eq!(admitted(&mut [several.layer(Probe::default())]).await, 0);
    // Of different numbers of processes, the one with the smallest share counts for all.
    let bucket = || TokenBucket::new(&store, "differs", Quota::per_hour(1).burst(10)).unwrap();
    let routes = [2, 5].map(|replicas| {
        RateLimitLayer::new(bucket(), everything).on_store_failure(shared_by(replicas))
    });
    assert_eq!(
        admitted(&mut routes.map(|route| route.layer(Probe::default()))).await,
        2
    );
}

/// Each process takes its part of what was counted last, and no more than by `at_least`.
#[tokio::test]
async fn a_counted_share_is_divided_by_the_processes_that_were_counted() {
    let counted = |replicas, at_least| StoreFailure::CountedShare {
        replicas: NonZeroU32::new(replicas).unwrap(),
        at_least: NonZeroU32::new(at_least).unwrap(),
    };
    let limit = |store: &Store, sharing| {
        RateLimitLayer::new(at_most(24, store), everything)
            .on_store_failure(sharing)
            .layer(Probe::default())
    };
    // Nothing was counted.
    let first = gone().await;
    assert_eq!(admitted(&mut [limit(&first, counted(4, 1))]).await, 6);

    let redis = RedisServer::start().await;
    let members = async || {
        redis
            .query::<i64>(&["ZCARD", "td:{requests:}:members"])
            .unwrap()
    };
    let mut processes = Vec::new();
    for number in 1..=8 {
        let store = patient!(redis.url());
        processes.push((limit(&store, counted(1, 3)), store));
        eventually("the process is counted", SOON, async || {
            members().await == number
        })
        .await;
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
