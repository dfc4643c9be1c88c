//! Outbound clients behind the layer: what others ask for already does not leave once more.

use std::time::Duration;

use axum::body::Body;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::StoreFailure;
use tower_distributed::extract::{SharedGet, path_and_query, shared_get};
use tower_distributed::response::{Answer, AnswerCodec, Responses};
use tower_distributed::web::single_flight;
use tower_distributed::{RefusalKind, SingleFlight, SingleFlightLayer};

use crate::flights::kind;
use crate::net::client;
use crate::stores::{HOUR, Stores, away, on_each_store};
use crate::upstream::{Upstream, hyper_client};

on_each_store!(
    hyper_asks_once,
    reqwest_asks_once,
    who_goes_away_leaves_nothing,
    ports_are_services_of_their_own,
    failures_are_told_to_those_who_wait
);

fn flight(stores: &Stores) -> SingleFlight<Answer> {
    SingleFlight::builder(AnswerCodec).ttl(HOUR).build(&stores.open(), "upstream").unwrap()
}

async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body,
    B::Error: std::fmt::Debug,
{
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn hyper_asks_once(stores: Stores) {
    let upstream = Upstream::start().await;
    let guarded = || {
        let layer = SingleFlightLayer::new(flight(&stores), SharedGet::new(path_and_query()))
            .capture(Responses::default());
        ServiceBuilder::new().layer(layer).service(hyper_client())
    };
    let (here, there) = (guarded(), guarded());
    let calls = (0..20).map(|number| {
        let service = if number % 2 == 0 { &here } else { &there };
        service.clone().oneshot(upstream.get("/"))
    });
    for outcome in join_all(calls).await {
        assert_eq!(text(outcome.unwrap()).await, "hello");
    }
    assert_eq!(upstream.requests(), 1);
}

/// reqwest's requests and responses are made of http's, and become such again.
async fn reqwest_asks_once(stores: Stores) {
    let upstream = Upstream::start().await;
    let guarded = || {
        let client = client();
        let send = service_fn(move |request: Request<reqwest::Body>| {
            let client = client.clone();
            async move { client.execute(request.try_into()?).await.map(Response::<reqwest::Body>::from) }
        });
        let layer = single_flight(flight(&stores), shared_get());
        ServiceBuilder::new().layer(layer).service(send)
    };
    let (here, there) = (guarded(), guarded());
    let calls = (0..20).map(|number| {
        let service = if number % 2 == 0 { &here } else { &there };
        service.clone().oneshot(upstream.get("/").map(reqwest::Body::from))
    });
    for outcome in join_all(calls).await {
        let response: reqwest::Response = outcome.unwrap().map(reqwest::Body::wrap).into();
        assert_eq!(response.text().await.unwrap(), "hello");
    }
    assert_eq!(upstream.requests(), 1);
}

async fn ports_are_services_of_their_own(stores: Stores) {
    let (one, other) = (Upstream::start().await, Upstream::start().await);
    let layer = single_flight(flight(&stores), shared_get());
    let service = ServiceBuilder::new().layer(layer).service(hyper_client());
    for upstream in [&one, &other, &one, &other] {
        assert_eq!(text(service.clone().oneshot(upstream.get("/")).await.unwrap()).await, "hello");
    }
    assert_eq!((one.requests(), other.requests()), (1, 1));
}

async fn who_goes_away_leaves_nothing(stores: Stores) {
    let upstream = Upstream::start().await;
    let guarded = || {
        ServiceBuilder::new()
            .layer(
                SingleFlightLayer::new(flight(&stores), |_: &Request<String>| "all")
                    .capture(Responses::default()),
            )
            .service(hyper_client())
    };
    let (here, there) = (guarded(), guarded());
    let hanging = tokio::spawn(here.clone().oneshot(upstream.get("/hang")));
    upstream.reached_by(1).await;
    let other = tokio::spawn(there.oneshot(upstream.get("/")));
    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(text(other.await.unwrap().unwrap()).await, "hello");
    assert_eq!(text(here.oneshot(upstream.get("/hang")).await.unwrap()).await, "hello", "it is there by now");
    assert_eq!(upstream.requests(), 2);
}

async fn failures_are_told_to_those_who_wait(stores: Stores) {
    let upstream = Upstream::start().await;
    let layer = single_flight(flight(&stores), shared_get());
    let service = ServiceBuilder::new().layer(layer).service(hyper_client());
    for outcome in join_all((0..5).map(|_| service.clone().oneshot(upstream.get("/fail")))).await {
        assert_eq!(outcome.unwrap().status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
    assert_eq!(upstream.requests(), 1);
    assert_eq!(
        service.clone().oneshot(upstream.get("/fail")).await.unwrap().status(),
        StatusCode::INTERNAL_SERVER_ERROR
    );
    assert_eq!(upstream.requests(), 2, "who comes later asks again");
    let nobody = Request::get("http://127.0.0.1:1/").body(String::new()).unwrap();
    let error = service.oneshot(nobody).await.err().unwrap();
    assert!(error.is_connect(), "the client's own error: {error}");
}

#[tokio::test]
async fn while_the_store_is_away_nothing_leaves() {
    let upstream = Upstream::start().await;
    let away = SingleFlight::builder(AnswerCodec)
        .on_store_failure(StoreFailure::FailClosed)
        .build(&away(), "upstream")
        .unwrap();
    let layer = SingleFlightLayer::new(away, SharedGet::new(path_and_query())).capture(Responses::default());
    let guarded = ServiceBuilder::new().layer(layer).service(hyper_client());
    let error: BoxError = guarded.oneshot(upstream.get("/")).await.err().unwrap();
    assert_eq!(kind(&error), Some(RefusalKind::StoreUnavailable));
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test]
async fn a_time_limit_around_it_is_the_callers_own() {
    let upstream = Upstream::start().await;
    let layer = SingleFlightLayer::new(flight(&Stores::in_memory()), |_: &Request<Body>| "all");
    let guarded = ServiceBuilder::new()
        .timeout(Duration::from_millis(50))
        .layer(layer.capture(Responses::default()))
        .service(service_fn(async |_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, BoxError>>().await
        }));
    let error = guarded.oneshot(upstream.get("/").map(Body::from)).await.err().unwrap();
    assert!(error.is::<tower::timeout::error::Elapsed>(), "{error}");
}
