//! Our layer outside of tower's: it sees their readiness, their delays and their errors.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use http::{Request, Response, StatusCode};
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::util::{BoxCloneService, BoxCloneSyncService};
use tower::{ServiceBuilder, ServiceExt as _};
use tower_distributed::RateLimitLayer;
use tower_distributed::response::refuse;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::net::{get, serve};
use crate::stacks::tower_inside::{assert_one, by_host};
use crate::stores::{Stores, at_most, on_each_store};
use crate::upstream::{Again, Upstream, hyper_client};

on_each_store!(
    around_buffer,
    around_concurrency_limit,
    around_boxed_services,
    around_timeout,
    around_retry,
    around_load_shed,
    around_trace_layer,
    around_the_timeout_of_tower_http,
);

async fn around_buffer(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host);
    let service = ServiceBuilder::new().layer(limit).buffer(8).service(hyper_client());
    assert_one(&Upstream::start().await, service).await;
}

async fn around_concurrency_limit(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host);
    let service = ServiceBuilder::new().layer(limit).concurrency_limit(1).service(hyper_client());
    assert_one(&Upstream::start().await, service).await;
}

async fn around_boxed_services(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host);
    let service = ServiceBuilder::new().layer(limit.clone()).service(BoxCloneService::new(hyper_client()));
    assert_one(&Upstream::start().await, service).await;
    let upstream = Upstream::start().await;
    let service = ServiceBuilder::new().layer(limit).service(BoxCloneSyncService::new(hyper_client()));
    assert!(service.oneshot(upstream.get("/")).await.is_err(), "the same limit");
    assert_eq!(upstream.requests(), 0);
}

async fn around_timeout(stores: Stores) {
    let upstream = Upstream::start().await;
    let bucket = at_most(2, &stores.open());
    let limit = RateLimitLayer::new(bucket.clone(), |_: &Request<String>| "all");
    let service =
        ServiceBuilder::new().layer(limit).timeout(Duration::from_millis(50)).service(hyper_client());
    let error = service.oneshot(upstream.get("/hang")).await.unwrap_err();
    assert!(error.is::<Elapsed>(), "{error}");
    assert_eq!(bucket.peek("all").await.unwrap().remaining(), 1, "a request that was sent stays charged");
}

async fn around_retry(stores: Stores) {
    let upstream = Upstream::start().await;
    let bucket = at_most(3, &stores.open());
    let limit = RateLimitLayer::new(bucket.clone(), |_: &Request<String>| "all");
    let service = ServiceBuilder::new().layer(limit).retry(Again(9)).service(hyper_client());
    let response = service.oneshot(upstream.get("/fail")).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(upstream.requests(), 10);
    assert_eq!(bucket.peek("all").await.unwrap().remaining(), 2, "all attempts cost one token");
}

async fn around_load_shed(stores: Stores) {
    let upstream = Upstream::start().await;
    let bucket = at_most(9, &stores.open());
    let limit = RateLimitLayer::new(bucket.clone(), |_: &Request<String>| "all");
    let service = ServiceBuilder::new().layer(limit).load_shed().concurrency_limit(1).service(hyper_client());
    let hanging = tokio::spawn(service.clone().oneshot(upstream.get("/hang")));
    upstream.reached_by(1).await;
    let error = service.clone().oneshot(upstream.get("/")).await.unwrap_err();
    assert!(error.is::<Overloaded>(), "{error}");

    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(service.oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(bucket.peek("all").await.unwrap().remaining(), 6);
}

/// `TraceLayer` wraps the body; a refusal cannot be made in its type, so the body is boxed in between.
async fn around_trace_layer(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), |_: &axum::extract::Request| "all");
    let layers = ServiceBuilder::new()
        .layer(limit.reject_with(refuse()))
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(TraceLayer::new_for_http());
    let url = serve(Router::new().route("/", on_get(async || "hello")).layer(layers)).await;
    assert_eq!(get(&url, &[]).await.body, "hello");
    let refused = get(&url, &[]).await;
    assert_eq!((refused.status, &refused.json()["status"]), (StatusCode::TOO_MANY_REQUESTS, &429.into()));
}

async fn around_the_timeout_of_tower_http(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), |_: &axum::extract::Request| "all");
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(50));
    let layers = ServiceBuilder::new().layer(limit.reject_with(refuse())).layer(timeout);
    let hang = on_get(std::future::pending::<StatusCode>);
    let url = serve(Router::new().route("/", hang).layer(layers)).await;
    assert_eq!(get(&url, &[]).await.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(get(&url, &[]).await.status, StatusCode::TOO_MANY_REQUESTS);
}
