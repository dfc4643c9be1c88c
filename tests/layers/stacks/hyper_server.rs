//! A hyper server through hyper-util, with bodies of its own choice, over HTTP/1 and HTTP/2.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use tower::{ServiceBuilder, service_fn};
use tower_distributed::extract::{client_ip, header};
use tower_distributed::response::{RateLimitFields, refuse};
use tower_distributed::token_bucket::Decision;
use tower_distributed::web::insert_decision;
use tower_distributed::{Quota, RateLimitLayer, TokenBucket};

use crate::net::{get, hellos_over_http2, serve_each as serve};
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(full_bodies, string_bodies, each_peer_has_its_own_limit, requests_wait_over_http2);

async fn full_bodies(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), header("x-api-key").unwrap().plain())
        .fields(RateLimitFields::default())
        .reject_with(refuse())
        .on_admit(insert_decision);
    let remaining = service_fn(async |request: Request<Incoming>| {
        let decision: Option<&Decision> = request.extensions().get();
        let body = decision.map_or("no limit".into(), |decision| decision.remaining().to_string());
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(body)))
    });
    let url = serve(ServiceBuilder::new().layer(limit).service(remaining)).await;
    let allowed = get(&url, &[("x-api-key", "ann")]).await;
    assert_eq!((allowed.status, &*allowed.body), (StatusCode::OK, "0"));
    assert_eq!(allowed.header("ratelimit"), Some(r#""default";r=0;t=3600"#));
    let refused = get(&url, &[("x-api-key", "ann")]).await;
    assert_eq!((refused.status, &refused.json()["status"]), (StatusCode::TOO_MANY_REQUESTS, &429.into()));
    let without_key = get(&url, &[]).await;
    assert_eq!(without_key.status, StatusCode::BAD_REQUEST);
    assert_eq!(without_key.json()["detail"], "the header field x-api-key is missing");
}

async fn string_bodies(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), |_: &Request<Incoming>| "all");
    let hello = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::from("hello"))));
    let url = serve(ServiceBuilder::new().layer(limit.reject_with(refuse())).service(hello)).await;
    assert_eq!(get(&url, &[]).await.body, "hello");
    let refused = get(&url, &[]).await;
    assert_eq!((refused.status, &refused.json()["status"]), (StatusCode::TOO_MANY_REQUESTS, &429.into()));
}

async fn each_peer_has_its_own_limit(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), client_ip());
    let hello = service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new(String::new())));
    let url = serve(ServiceBuilder::new().layer(limit.reject_with(refuse())).service(hello)).await;
    let status = async |from: [u8; 4]| {
        let client = reqwest::Client::builder().no_proxy().local_address(std::net::IpAddr::from(from));
        client.build().unwrap().get(&url).send().await.unwrap().status()
    };
    assert_eq!(status([127, 0, 0, 1]).await, StatusCode::OK);
    assert_eq!(status([127, 0, 0, 1]).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status([127, 0, 0, 2]).await, StatusCode::OK);
}

async fn requests_wait_over_http2(stores: Stores) {
    let period = Duration::from_millis(50);
    let bucket = TokenBucket::new(&stores.open(), "requests", Quota::new(1, period)).unwrap();
    let limit = RateLimitLayer::new(bucket, |_: &Request<Incoming>| "all")
        .max_wait(Duration::from_secs(60))
        .reject_with(refuse());
    let hello =
        service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new("hello".to_owned())));
    let url = serve(ServiceBuilder::new().layer(limit).service(hello)).await;

    let began = std::time::Instant::now();
    hellos_over_http2(&url, 4).await;
    assert!(began.elapsed() >= 3 * period, "one at once, three at their pace: {:?}", began.elapsed());
}
