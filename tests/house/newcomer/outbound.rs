//! A client that keeps to the limit of each host, waits for its turn, and stops where a host says so.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use reqwest::{Request, Response};
use tower::{Service as _, ServiceBuilder, ServiceExt as _};
use tower_distributed::response::RetryAfter;
use tower_distributed::{Quota, RateLimitLayer, Refusal, Store, TokenBucket};

use crate::newcomer::net::{client, serve};

#[tokio::test]
async fn program() {
    let url = serve(Router::new().route(
        "/",
        get(async || (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "60")])),
    ))
    .await;
    let bucket = TokenBucket::new(&Store::in_memory(), "hosts", Quota::per_second(100)).unwrap();
    // user: outbound
    let limit = RateLimitLayer::new(bucket.clone(), |request: &Request| {
        request.url().authority().to_owned()
    })
    .max_wait(Duration::from_secs(10))
    .block_on_response(|response: &Response| {
        RetryAfter::default().read(response.status(), response.headers())
    });
    let mut client = ServiceBuilder::new().layer(limit).service(client());
    // end
    let request = || Request::new(reqwest::Method::GET, url.parse().unwrap());
    assert_eq!(
        client
            .ready()
            .await
            .unwrap()
            .call(request())
            .await
            .unwrap()
            .status(),
        429
    );
    let host = request().url().authority().to_owned();
    while bucket.peek(host.as_str()).await.unwrap().remaining() > 0 {
        tokio::task::yield_now().await;
    }
    let error = client
        .ready()
        .await
        .unwrap()
        .call(request())
        .await
        .unwrap_err();
    assert!(error.is::<Refusal>(), "it is not asked for a minute");
}
