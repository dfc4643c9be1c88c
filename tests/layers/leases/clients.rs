//! Outbound clients, limited by host: what is refused never leaves.

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tower::{ServiceBuilder, ServiceExt as _};
use tower_distributed::response::UntilBodyEnd;
use tower_distributed::{ConcurrencyLimitLayer, Refusal, RefusalKind};

use crate::families::{becomes_free, is_free, permits};
use crate::net::client;
use crate::stacks::tower_layers::abort;
use crate::stores::{SOON, Stores, on_each_store};
use crate::upstream::{Upstream, hyper_client};

on_each_store!(reqwest_is_limited_by_host, reqwest_waits_for_its_turn, hyper_holds_its_permit_while_it_reads);

const HOST: &str = "127.0.0.1";

fn by_host(request: &reqwest::Request) -> Option<&str> {
    request.url().host_str()
}

fn request(upstream: &Upstream, path: &str) -> reqwest::Request {
    reqwest::Request::new(reqwest::Method::GET, format!("{}{path}", upstream.url).parse().unwrap())
}

async fn reqwest_is_limited_by_host(stores: Stores) {
    let upstream = Upstream::start().await;
    let limit = || ConcurrencyLimitLayer::new(permits(&stores.open(), 1), by_host);
    let here = ServiceBuilder::new().layer(limit()).service(client());
    let there = ServiceBuilder::new().layer(limit()).service(client());
    let hanging = tokio::spawn(here.clone().oneshot(request(&upstream, "/hang")));
    upstream.reached_by(1).await;
    for service in [here.clone(), there.clone()] {
        let error = service.oneshot(request(&upstream, "/")).await.unwrap_err();
        assert_eq!(error.downcast_ref::<Refusal>().unwrap().kind(), RefusalKind::NoPermit);
    }
    assert_eq!(upstream.requests(), 1);
    abort(hanging).await;
    becomes_free(&stores, HOST).await;
    let response = there.oneshot(request(&upstream, "/")).await.unwrap();
    assert_eq!((response.status(), response.text().await.unwrap()), (StatusCode::OK, "hello".into()));
}

async fn reqwest_waits_for_its_turn(stores: Stores) {
    let upstream = Upstream::start().await;
    let limit = || ConcurrencyLimitLayer::new(permits(&stores.open(), 2), by_host).max_wait(SOON);
    let here = ServiceBuilder::new().layer(limit()).service(client());
    let there = ServiceBuilder::new().layer(limit()).service(client());
    let calls = (0..5).flat_map(|_| [here.clone(), there.clone()]);
    let calls = calls.map(|service| service.oneshot(request(&upstream, "/")));
    for outcome in futures::future::join_all(calls).await {
        assert_eq!(outcome.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(upstream.requests(), 10);
    becomes_free(&stores, HOST).await;
}

async fn hyper_holds_its_permit_while_it_reads(stores: Stores) {
    let upstream = Upstream::start().await;
    let by_host = |request: &Request<String>| request.uri().host().map(str::to_owned);
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), by_host).hold(UntilBodyEnd::default());
    let service = ServiceBuilder::new().layer(limit).service(hyper_client());
    let response = service.clone().oneshot(upstream.get("/")).await.unwrap();
    assert!(!is_free(&stores, HOST).await);
    let error = service.clone().oneshot(upstream.get("/")).await.err().unwrap();
    assert!(error.is::<Refusal>(), "{error}");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    becomes_free(&stores, HOST).await;
    drop(service.clone().oneshot(upstream.get("/")).await.unwrap());
    becomes_free(&stores, HOST).await;
    assert_eq!(upstream.requests(), 2);
}
