//! Among tower's own layers: they see its readiness, its delays and its errors, and it sees theirs.

use std::time::Duration;

use http::{Request, StatusCode};
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::{ServiceBuilder, ServiceExt as _};
use tower_distributed::{ConcurrencyLimitLayer, Refusal, RwLockLayer};

use crate::families::{Other, becomes_free, locks, permits};
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use crate::upstream::{Again, Upstream, hyper_client};

on_each_store!(
    in_timeout,
    around_timeout,
    in_retry,
    around_retry,
    in_load_shed,
    around_load_shed,
    in_buffer,
    around_buffer,
    one_in_the_other,
);

const ALL: &str = "all";

fn everything(_: &Request<String>) -> &'static str {
    ALL
}

const SHORT: Duration = Duration::from_millis(50);

async fn in_timeout(stores: Stores) {
    let upstream = Upstream::start().await;
    let other = Other::holds(&stores, ALL).await;
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), everything).max_wait(HOUR);
    let limited = ServiceBuilder::new().timeout(SHORT).layer(limit).service(hyper_client());
    let lock = RwLockLayer::new(locks(&stores.open()), everything).max_wait(HOUR);
    let locked = ServiceBuilder::new().timeout(SHORT).layer(lock).service(hyper_client());
    assert!(limited.clone().oneshot(upstream.get("/")).await.unwrap_err().is::<Elapsed>());
    assert!(locked.clone().oneshot(upstream.get("/")).await.unwrap_err().is::<Elapsed>());
    other.leaves().await;
    becomes_free(&stores, ALL).await;
    assert_eq!(upstream.requests(), 0);
    // A request at work is cut short as well, and gives back what it has.
    assert!(limited.oneshot(upstream.get("/hang")).await.unwrap_err().is::<Elapsed>());
    assert!(locked.oneshot(upstream.get("/hang")).await.unwrap_err().is::<Elapsed>());
    becomes_free(&stores, ALL).await;
}

async fn around_timeout(stores: Stores) {
    let upstream = Upstream::start().await;
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), everything);
    let service = ServiceBuilder::new().layer(limit).timeout(SHORT).service(hyper_client());
    let error = service.oneshot(upstream.get("/hang")).await.unwrap_err();
    assert!(error.is::<Elapsed>(), "{error}");
    assert_eq!(upstream.requests(), 1);
    becomes_free(&stores, ALL).await;
}

async fn in_retry(stores: Stores) {
    let upstream = Upstream::start().await;
    // Each attempt waits for the permit of the one before, which is on its way back.
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), everything).max_wait(SOON);
    let service = ServiceBuilder::new().retry(Again(9)).layer(limit).service(hyper_client());
    let response = service.oneshot(upstream.get("/fail")).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(upstream.requests(), 10);
    becomes_free(&stores, ALL).await;
}

async fn around_retry(stores: Stores) {
    let upstream = Upstream::start().await;
    let lock = RwLockLayer::new(locks(&stores.open()), everything);
    let service = ServiceBuilder::new().layer(lock).retry(Again(9)).service(hyper_client());
    let response = service.oneshot(upstream.get("/fail")).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(upstream.requests(), 10, "all attempts under one lock");
    becomes_free(&stores, ALL).await;
}

async fn in_load_shed(stores: Stores) {
    let upstream = Upstream::start().await;
    let group = permits(&stores.open(), 9);
    let limit = ConcurrencyLimitLayer::new(group.clone(), everything);
    let service = ServiceBuilder::new().load_shed().layer(limit).concurrency_limit(1).service(hyper_client());
    let hanging = tokio::spawn(service.clone().oneshot(upstream.get("/hang")));
    upstream.reached_by(1).await;
    let error = service.clone().oneshot(upstream.get("/")).await.unwrap_err();
    assert!(error.is::<Overloaded>(), "{error}");
    assert_eq!(group.count(ALL).await.unwrap(), 1, "what is shed takes nothing");
    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
    becomes_free(&stores, ALL).await;
    assert_eq!(service.oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
}

async fn around_load_shed(stores: Stores) {
    let upstream = Upstream::start().await;
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 9), everything);
    let service = ServiceBuilder::new().layer(limit).load_shed().concurrency_limit(1).service(hyper_client());
    let hanging = tokio::spawn(service.clone().oneshot(upstream.get("/hang")));
    upstream.reached_by(1).await;
    let error = service.clone().oneshot(upstream.get("/")).await.unwrap_err();
    assert!(error.is::<Overloaded>(), "{error}");
    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
    becomes_free(&stores, ALL).await;
}

/// One is at work, another is refused; then it is free again.
macro_rules! assert_one {
    ($stores:expr, $service:expr) => {{
        let (upstream, service) = (Upstream::start().await, $service);
        let hanging = tokio::spawn(service.clone().oneshot(upstream.get("/hang")));
        upstream.reached_by(1).await;
        let error = service.clone().oneshot(upstream.get("/")).await.unwrap_err();
        assert!(error.is::<Refusal>(), "{error}");
        hanging.abort();
        assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
        becomes_free(&$stores, ALL).await;
        assert_eq!(service.oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
        assert_eq!(upstream.requests(), 2);
    }};
}

async fn in_buffer(stores: Stores) {
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), everything);
    assert_one!(stores, ServiceBuilder::new().buffer(8).layer(limit).service(hyper_client()));
}

async fn around_buffer(stores: Stores) {
    let lock = RwLockLayer::new(locks(&stores.open()), everything);
    assert_one!(stores, ServiceBuilder::new().layer(lock).buffer(8).service(hyper_client()));
}

async fn one_in_the_other(stores: Stores) {
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), everything);
    let lock = RwLockLayer::new(locks(&stores.open()), everything);
    assert_one!(stores, ServiceBuilder::new().layer(limit).layer(lock).service(hyper_client()));
}
