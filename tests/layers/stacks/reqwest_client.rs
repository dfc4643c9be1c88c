//! reqwest's `Client` as a service, guarded: in refuse mode and in wait mode.

use std::time::{Duration, Instant};

use reqwest::{Method, Request, Response, StatusCode};
use tower::{Service as _, ServiceBuilder, ServiceExt as _};
use tower_distributed::{Quota, RateLimitLayer, Refusal, RefusalKind, TokenBucket};

use crate::net::client;
use crate::stores::{Stores, at_most, away, on_each_store};
use crate::upstream::Upstream;

on_each_store!(
    refused_requests_never_leave,
    refusals_can_be_responses,
    requests_wait_for_their_turn,
    who_would_wait_too_long_is_refused_at_once,
);

fn request(upstream: &Upstream) -> Request {
    Request::new(Method::GET, upstream.url.parse().unwrap())
}

fn by_host(request: &Request) -> Option<&str> {
    request.url().host_str()
}

async fn refused_requests_never_leave(stores: Stores) {
    let upstream = Upstream::start().await;
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host);
    let mut guarded = ServiceBuilder::new().layer(limit).service(client());
    let response = guarded.ready().await.unwrap().call(request(&upstream)).await.unwrap();
    assert_eq!((response.status(), response.text().await.unwrap()), (StatusCode::OK, "hello".into()));
    let error = guarded.ready().await.unwrap().call(request(&upstream)).await.unwrap_err();
    let refusal = error.downcast_ref::<Refusal>().unwrap();
    assert_eq!(refusal.kind(), RefusalKind::RateLimited);
    assert!(refusal.retry_after().is_some_and(|after| after > Duration::from_secs(3500)));
    assert_eq!(upstream.requests(), 1);
}

async fn refusals_can_be_responses(stores: Stores) {
    let upstream = Upstream::start().await;
    let too_many = |refusal: Refusal| {
        let response = http::Response::builder().status(StatusCode::TOO_MANY_REQUESTS);
        Response::from(response.body(refusal.to_string()).unwrap())
    };
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host).reject_with(too_many);
    let guarded = ServiceBuilder::new().layer(limit).service(client());
    let call =
        async || -> Result<Response, reqwest::Error> { guarded.clone().oneshot(request(&upstream)).await };
    assert_eq!(call().await.unwrap().status(), StatusCode::OK);
    let refused = call().await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.text().await.unwrap().contains("rate limit exceeded"));
    assert_eq!(upstream.requests(), 1);
}

async fn requests_wait_for_their_turn(stores: Stores) {
    let upstream = Upstream::start().await;
    let period = Duration::from_millis(50);
    let limit = |stores: &Stores| {
        let bucket = TokenBucket::new(&stores.open(), "upstream", Quota::new(1, period)).unwrap();
        RateLimitLayer::new(bucket, by_host).max_wait(Duration::from_secs(60))
    };
    let here = ServiceBuilder::new().layer(limit(&stores)).service(client());
    let there = ServiceBuilder::new().layer(limit(&stores)).service(client());
    let began = Instant::now();
    let calls = (0..3).flat_map(|_| [here.clone(), there.clone()]);
    let calls = calls.map(|guarded| guarded.oneshot(request(&upstream)));
    for outcome in futures::future::join_all(calls).await {
        assert_eq!(outcome.unwrap().status(), StatusCode::OK);
    }
    assert!(began.elapsed() >= 5 * period, "one at once, five at their pace: {:?}", began.elapsed());
    assert_eq!(upstream.requests(), 6);
}

async fn who_would_wait_too_long_is_refused_at_once(stores: Stores) {
    let upstream = Upstream::start().await;
    let limit = RateLimitLayer::new(at_most(1, &stores.open()), by_host).max_wait(Duration::from_secs(60));
    let guarded = ServiceBuilder::new().layer(limit).service(client());
    guarded.clone().oneshot(request(&upstream)).await.unwrap();
    let began = Instant::now();
    let error = guarded.oneshot(request(&upstream)).await.unwrap_err();
    assert!(
        error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.kind() == RefusalKind::RateLimited)
    );
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test]
async fn while_the_store_is_away_nothing_leaves() {
    let upstream = Upstream::start().await;
    let limit = RateLimitLayer::new(at_most(1, &away()), by_host);
    let guarded = ServiceBuilder::new().layer(limit).service(client());
    let error = guarded.oneshot(request(&upstream)).await.unwrap_err();
    let refusal = error.downcast_ref::<Refusal>().unwrap();
    assert_eq!(refusal.kind(), RefusalKind::StoreUnavailable);
    assert_eq!(upstream.requests(), 0);
}
