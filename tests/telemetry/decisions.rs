//! What became of requests is counted, by limiter, namespace and outcome.

use std::convert::Infallible;
use std::num::NonZeroU32;

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_distributed::dedupe::DuplicateAction;
use tower_distributed::rw_lock::RwLock;
use tower_distributed::{
    BloomFilter, ConcurrencyLimitLayer, Dedupe, DedupeLayer, Mutex, Quota, RateLimitLayer,
    RwLockLayer, Store, StoreFailure, TokenBucket, WaitGroup,
};

use crate::seen::{assert_no_secrets, decisions, events, listen};
use crate::{KEY, SOON};
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

fn key(_: &u8) -> &'static str {
    KEY
}

/// Sends one request through a layer.
macro_rules! send {
    ($layer:expr) => {
        $layer
            .layer(service_fn(async |request: u8| Ok::<_, Infallible>(request)))
            .oneshot(7)
            .await
    };
}

/// All that was counted of a limiter.
fn counts(limiter: &str, namespace: &str) -> Vec<(&'static str, f64)> {
    let outcomes = [
        "admitted",
        "refused",
        "refused_from_cache",
        "shared",
        "failed_open",
        "failed_closed",
        "local_share",
        "overloaded",
        "shadowed",
    ];
    let counts = outcomes.map(|outcome| (outcome, decisions(limiter, namespace, outcome)));
    counts
        .into_iter()
        .filter(|(_, count)| *count > 0.0)
        .collect()
}

#[tokio::test]
async fn decisions_of_rate_limits_are_counted_by_layers_and_by_calls() {
    listen();
    let server = RedisServer::start().await;
    for (store, place) in [
        (Store::in_memory(), "memory"),
        (patient!(server.url()), "redis"),
    ] {
        let bucket = |name: &str| {
            TokenBucket::new(&store, &format!("{name}-{place}"), Quota::per_hour(1)).unwrap()
        };
        let layer = RateLimitLayer::new(bucket("layer"), key).cache_refusals(false);
        send!(layer).unwrap();
        send!(layer).unwrap_err();
        send!(layer).unwrap_err();
        // Costs nothing: not decided.
        send!(layer.clone().cost(|_: &u8| 0)).unwrap();
        send!(layer.cost(|_: &u8| 2)).unwrap_err();
        assert_eq!(
            counts("token_bucket", &format!("layer-{place}")),
            [("admitted", 1.0), ("refused", 3.0)]
        );

        let layer = RateLimitLayer::new(bucket("cached"), key);
        send!(layer).unwrap();
        send!(layer).unwrap_err();
        send!(layer).unwrap_err();
        let in_memory = [("admitted", 1.0), ("refused", 2.0)];
        let on_redis = [
            ("admitted", 1.0),
            ("refused", 1.0),
            ("refused_from_cache", 1.0),
        ];
        let expected = if place == "redis" {
            &on_redis[..]
        } else {
            &in_memory
        };
        assert_eq!(counts("token_bucket", &format!("cached-{place}")), expected);

        let direct = bucket("direct");
        assert!(direct.allow(KEY).await.unwrap().is_admitted());
        assert!(!direct.allow(KEY).await.unwrap().is_admitted());
        direct
            .with_max_wait(std::time::Duration::ZERO)
            .wait(KEY)
            .await
            .unwrap_err();
        assert_eq!(
            counts("token_bucket", &format!("direct-{place}")),
            [("admitted", 1.0), ("refused", 2.0)]
        );
    }
    assert_no_secrets();
}

#[tokio::test]
async fn decisions_without_the_store_are_counted_and_told() {
    listen();
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    server.kill9();
    let share = StoreFailure::LocalShare {
        replicas: NonZeroU32::new(2).unwrap(),
    };
    let bucket = |name: &str| TokenBucket::new(&store, name, Quota::per_hour(2)).unwrap();
    let group = |name: &str| WaitGroup::new(&store, name, 2).unwrap();
    let claims = |name: &str| {
        Dedupe::builder()
            .remember_forever()
            .build(&BloomFilter::new(&store, name, 1000, 0.01).unwrap())
            .unwrap()
    };

    for (on_store_failure, name, outcome) in [
        (StoreFailure::FailClosed, "away-closed", "failed_closed"),
        (StoreFailure::FailOpen, "away-open", "failed_open"),
        (share, "away-share", "local_share"),
    ] {
        let passes = on_store_failure != StoreFailure::FailClosed;
        let limit = RateLimitLayer::new(bucket(name), key).on_store_failure(on_store_failure);
        assert_eq!(send!(limit).is_ok(), passes);
        let permits =
            ConcurrencyLimitLayer::new(group(name), key).on_store_failure(on_store_failure);
        assert_eq!(send!(permits).is_ok(), passes);
        let once = DedupeLayer::new(claims(name), key).on_store_failure(on_store_failure);
        assert_eq!(send!(once).is_ok(), passes);
        for limiter in ["token_bucket", "wait_group", "dedupe"] {
            assert_eq!(counts(limiter, name), [(outcome, 1.0)], "{limiter}");
        }
    }
    send!(RateLimitLayer::new(bucket("away-share"), key).on_store_failure(share)).unwrap_err();
    assert_eq!(
        counts("token_bucket", "away-share"),
        [("refused", 1.0), ("local_share", 1.0)]
    );
    send!(RwLockLayer::new(
        RwLock::new(&store, "away-closed").unwrap(),
        key
    ))
    .unwrap_err();
    Mutex::new(&store, "away-closed")
        .unwrap()
        .try_lock(KEY)
        .await
        .unwrap_err();
    for limiter in ["rw_lock", "mutex"] {
        assert_eq!(
            counts(limiter, "away-closed"),
            [("failed_closed", 1.0)],
            "{limiter}"
        );
    }
    send!(RateLimitLayer::new(bucket("away-shadow"), key).shadow()).unwrap();
    assert_eq!(counts("token_bucket", "away-shadow"), [("shadowed", 1.0)]);

    // At most one event a second is told in this process.
    let layer =
        RateLimitLayer::new(bucket("away-told"), key).on_store_failure(StoreFailure::FailOpen);
    eventually("degraded", SOON, async || {
        send!(layer).unwrap();
        !events(&[("event", "degraded"), ("namespace", "away-told")]).is_empty()
    })
    .await;
    let event = &events(&[("event", "degraded"), ("namespace", "away-told")])[0];
    assert_eq!(
        (event["level"].as_str(), event["limiter"].as_str()),
        ("WARN", "token_bucket")
    );
    assert!(event["count"].parse::<u64>().unwrap() > 0);
    let counted = crate::seen::value(
        "tower_distributed_events_total",
        &[("namespace", "away-told"), ("event", "degraded")],
    );
    assert_eq!(
        counted,
        decisions("token_bucket", "away-told", "failed_open")
    );
    assert_no_secrets();
}

#[tokio::test]
async fn decisions_of_leases_and_claims_are_counted() {
    listen();
    let store = Store::in_memory();
    let group = WaitGroup::new(&store, "held", 1).unwrap();
    let layer = ConcurrencyLimitLayer::new(group.clone(), key);
    send!(layer).unwrap();
    let permit = group.add(KEY).await.unwrap();
    send!(layer).unwrap_err();
    group.try_add(KEY).await.unwrap_err();
    drop(permit);
    assert_eq!(
        counts("wait_group", "held"),
        [("admitted", 2.0), ("refused", 2.0)]
    );

    let lock = RwLock::new(&store, "held").unwrap();
    let layer = RwLockLayer::new(lock.clone(), key);
    send!(layer).unwrap();
    let guard = lock.read(KEY).await.unwrap();
    send!(layer).unwrap_err();
    drop(guard);
    assert_eq!(
        counts("rw_lock", "held"),
        [("admitted", 2.0), ("refused", 1.0)]
    );

    let claims = Dedupe::builder()
        .remember_forever()
        .build(&BloomFilter::new(&store, "held", 1000, 0.01).unwrap())
        .unwrap();
    let layer = DedupeLayer::new(claims.clone(), key);
    send!(layer).unwrap();
    send!(layer).unwrap_err();
    send!(layer.on_duplicate(|item, _| DuplicateAction::Pass(item))).unwrap();
    drop(claims.try_claim(KEY).await.unwrap());
    assert_eq!(
        counts("dedupe", "held"),
        [("admitted", 2.0), ("refused", 2.0)]
    );

    let mutex = Mutex::new(&store, "held").unwrap();
    let guard = mutex.lock(KEY).await.unwrap();
    mutex.try_lock(KEY).await.unwrap_err();
    drop(guard);
    assert_eq!(
        counts("mutex", "held"),
        [("admitted", 1.0), ("refused", 1.0)]
    );
    assert_no_secrets();
}

#[cfg(feature = "postcard")]
#[tokio::test]
async fn decisions_of_single_flights_are_counted() {
    use tower_distributed::single_flight::Postcard;
    use tower_distributed::{SingleFlight, SingleFlightLayer};

    listen();
    let flight = SingleFlight::<u8>::new(&Store::in_memory(), "flown").unwrap();
    let run = || flight.run(KEY, || async { 7 });
    let (one, other) = tokio::join!(run(), run());
    assert_eq!((one.unwrap(), other.unwrap()), (7, 7));
    assert_eq!(
        counts("single_flight", "flown"),
        [("admitted", 1.0), ("shared", 1.0)]
    );

    let server = RedisServer::start().await;
    let store = patient!(server.url());
    server.kill9();
    for (name, alone, outcome) in [
        ("flown-closed", false, "failed_closed"),
        ("flown-open", true, "failed_open"),
    ] {
        let flight = SingleFlight::<u8>::builder(Postcard)
            .on_store_failure(if alone {
                StoreFailure::FailOpen
            } else {
                StoreFailure::FailClosed
            })
            .build(&store, name)
            .unwrap();
        let mut layer = SingleFlightLayer::new(flight, key)
            .layer(service_fn(async |request: u8| Ok::<_, Infallible>(request)));
        assert_eq!(layer.ready().await.unwrap().call(7).await.is_ok(), alone);
        assert_eq!(counts("single_flight", name), [(outcome, 1.0)]);
    }
    assert_no_secrets();
}
