//! Around hyper's client, and among tower's own layers: they see its readiness, its delays and its errors, and it sees theirs.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use futures::future::join_all;
use http::{Request, StatusCode};
use tower::util::BoxCloneService;
use tower::{ServiceBuilder, ServiceExt as _};
use tower_distributed::SingleFlightLayer;
use tower_distributed::extract::{SharedGet, shared_get};
use tower_distributed::response::{Answer, Responses};
use tower_distributed::web::single_flight;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::flights::pages;
use crate::net::{get, serve};
use crate::stores::{Stores, on_each_store};
use crate::upstream::{Upstream, hyper_client};

on_each_store!(
    one_request_of_many_leaves,
    failures_are_told_to_those_who_wait,
    in_and_around_layers_of_tower_http,
);

type By = fn(&Request<String>) -> &'static str;
type Flights = SingleFlightLayer<Request<String>, Answer, Infallible, Responses>;

async fn one_request_of_many_leaves(stores: Stores) {
    let by: By = |_| "all";
    let flights: Flights = SingleFlightLayer::new(pages(&stores), by).capture(Responses::default());
    let inner = ServiceBuilder::new().buffer(32).concurrency_limit(3).service(hyper_client());
    let flying = ServiceBuilder::new().layer(flights).service(BoxCloneService::new(inner));
    let service = ServiceBuilder::new().buffer(8).concurrency_limit(3).service(BoxCloneService::new(flying));
    let upstream = Upstream::start().await;
    let calls = (0..20).map(|_| service.clone().oneshot(upstream.get("/")));
    for outcome in join_all(calls).await {
        assert_eq!(outcome.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(upstream.requests(), 1);
}

async fn failures_are_told_to_those_who_wait(stores: Stores) {
    let upstream = Upstream::start().await;
    let layer = single_flight(pages(&stores), shared_get());
    let service = ServiceBuilder::new().layer(layer).service(hyper_client());
    // Who comes later asks again.
    for (count, requests) in [(5, 1), (1, 2)] {
        for outcome in join_all((0..count).map(|_| service.clone().oneshot(upstream.get("/fail")))).await {
            assert_eq!(outcome.unwrap().status(), StatusCode::INTERNAL_SERVER_ERROR);
        }
        assert_eq!(upstream.requests(), requests);
    }
    let nobody = Request::get("http://127.0.0.1:1/").body(String::new()).unwrap();
    let error = service.oneshot(nobody).await.err().unwrap();
    assert!(error.is_connect(), "the client's own error: {error}");
}

async fn in_and_around_layers_of_tower_http(stores: Stores) {
    let flights =
        || single_flight(pages(&stores), SharedGet::new(|request: &Request<Body>| request.uri().to_string()));
    let trace = TraceLayer::new_for_http;
    let hello = |path| Router::new().route(path, on_get(async || "hello"));
    let hang = Router::new().route("/hang", on_get(std::future::pending::<StatusCode>));
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(50));
    let (ok, late) = ((StatusCode::OK, "hello"), (StatusCode::GATEWAY_TIMEOUT, ""));
    for (app, path, told) in [
        (hello("/in").layer(ServiceBuilder::new().layer(trace()).layer(flights())), "/in", ok),
        // Its bodies are such that the layer can be around it as it is.
        (hello("/around").layer(ServiceBuilder::new().layer(flights()).layer(trace())), "/around", ok),
        (hang.layer(ServiceBuilder::new().layer(flights()).layer(timeout)), "/hang", late),
    ] {
        let url = serve(app).await + path;
        for answer in join_all((0..3).map(|_| get(&url, &[]))).await {
            assert_eq!((answer.status, &*answer.body), told);
        }
    }
}
