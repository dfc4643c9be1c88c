//! Our layer inside of tower's: they see its readiness, its delays and its errors.

use std::time::Duration;

use axum::Router;
use axum::routing::get as on_get;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_distributed::response::refuse;
use tower_distributed::{RateLimitLayer, Refusal};
use tower_http::trace::TraceLayer;

use crate::net::{get, serve};
use crate::stores::{HOUR, SOON, Stores, at_most, on_each_store};
use crate::upstream::{Again, Upstream, hyper_client};
use support::eventually;

on_each_store!(
    in_buffer,
    in_concurrency_limit,
    in_box_clone_service,
    in_timeout,
    in_retry,
    in_load_shed,
    in_trace_layer,
);

/// The first request is answered and the second refused, and so is the third.
pub(crate) async fn assert_one<S>(upstream: &Upstream, mut service: S)
where
    S: Service<Request<String>, Response = Response<Incoming>, Error = BoxError>,
{
    let response = service.ready().await.unwrap().call(upstream.get("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    for _ in 0..2 {
        let error = service.ready().await.unwrap().call(upstream.get("/")).await.unwrap_err();
        assert!(error.downcast_ref::<Refusal>().is_some(), "{error}");
    }
    assert_eq!(upstream.requests(), 1);
}

pub(crate) fn by_host(request: &Request<String>) -> Option<&str> {
    request.uri().host()
}

async fn in_buffer(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host);
    let service = ServiceBuilder::new().buffer(8).layer(limit).service(hyper_client());
    assert_one(&Upstream::start().await, service).await;
}

async fn in_concurrency_limit(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host);
    let service = ServiceBuilder::new().concurrency_limit(1).layer(limit).service(hyper_client());
    assert_one(&Upstream::start().await, service).await;
}

async fn in_box_clone_service(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host);
    let service = ServiceBuilder::new().layer(limit).service(hyper_client());
    assert_one(&Upstream::start().await, BoxCloneService::new(service)).await;
}

async fn in_timeout(stores: Stores) {
    let upstream = Upstream::start().await;
    let bucket = at_most(1, &stores.open());
    let limit = RateLimitLayer::new(bucket.clone(), |_: &Request<String>| "all").max_wait(100 * HOUR);
    let service =
        ServiceBuilder::new().timeout(Duration::from_millis(50)).layer(limit).service(hyper_client());
    bucket.allow("all").await.unwrap();
    let error = service.oneshot(upstream.get("/")).await.unwrap_err();
    assert!(error.is::<Elapsed>(), "{error}");
    eventually("the token to be given back", SOON, async || {
        bucket.peek("all").await.unwrap().available_after(1).unwrap() <= HOUR
    })
    .await;
    assert_eq!(upstream.requests(), 0);
}

async fn in_retry(stores: Stores) {
    let upstream = Upstream::start().await;
    let bucket = at_most(3, &stores.open());
    let limit = RateLimitLayer::new(bucket.clone(), |_: &Request<String>| "all");
    let service = ServiceBuilder::new().retry(Again(9)).layer(limit).service(hyper_client());
    let error = service.oneshot(upstream.get("/fail")).await.unwrap_err();
    assert!(error.downcast_ref::<Refusal>().is_some(), "every attempt costs: {error}");
    assert_eq!(upstream.requests(), 3);
    assert_eq!(bucket.peek("all").await.unwrap().remaining(), 0);
}

async fn in_load_shed(stores: Stores) {
    let upstream = Upstream::start().await;
    let bucket = at_most(9, &stores.open());
    let limit = RateLimitLayer::new(bucket.clone(), |_: &Request<String>| "all");
    let service = ServiceBuilder::new().load_shed().layer(limit).concurrency_limit(1).service(hyper_client());
    let hanging = tokio::spawn(service.clone().oneshot(upstream.get("/hang")));
    upstream.reached_by(1).await;
    let error = service.clone().oneshot(upstream.get("/")).await.unwrap_err();
    assert!(error.is::<Overloaded>(), "{error}");
    assert_eq!(bucket.peek("all").await.unwrap().remaining(), 8, "what is shed costs nothing");

    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(service.oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
}

async fn in_trace_layer(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), |_: &axum::extract::Request| "all");
    let layers = ServiceBuilder::new().layer(TraceLayer::new_for_http()).layer(limit.reject_with(refuse()));
    let url = serve(Router::new().route("/", on_get(async || "hello")).layer(layers)).await;
    assert_eq!(get(&url, &[]).await.body, "hello");
    let refused = get(&url, &[]).await;
    assert_eq!((refused.status, &refused.json()["status"]), (StatusCode::TOO_MANY_REQUESTS, &429.into()));
}
