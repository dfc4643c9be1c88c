//! Outbound clients behind the layer: what others ask for already does not leave once more.

use futures::future::join_all;
use http::{Request, Response, StatusCode};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::SingleFlight;
use tower_distributed::extract::shared_get;
use tower_distributed::response::{Answer, AnswerCodec};
use tower_distributed::web::single_flight;

use crate::net::client;
use crate::stores::{HOUR, Stores, on_each_store};
use crate::upstream::{Upstream, hyper_client};

on_each_store!(reqwest_asks_once, failures_are_told_to_those_who_wait);

fn flight(stores: &Stores) -> SingleFlight<Answer> {
    SingleFlight::builder(AnswerCodec).ttl(HOUR).build(&stores.open(), "upstream").unwrap()
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
