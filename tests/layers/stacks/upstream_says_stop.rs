//! An upstream answers 429 with Retry-After to one process: all processes stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::header::RETRY_AFTER;
use axum::routing::get as on_get;
use http::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower::{ServiceBuilder, ServiceExt as _};
use tower_distributed::response::RetryAfter;
use tower_distributed::{RateLimitLayer, Refusal, TokenBucket};

use crate::net::{client, serve};
use crate::stores::{SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(
    a_closure_reads_reqwest_responses,
    retry_after_reads_http_responses,
    an_answer_without_retry_after_stops_nobody,
    whatever_refuses_and_however_it_says_so,
    what_is_no_refusal_stops_nobody,
    nobody_is_blocked_for_longer_than_is_believed,
);

/// An upstream that has had enough: always the same status, with these fields.
async fn fed_up(status: StatusCode, retry_after: Option<&'static str>) -> (String, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let answer = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let fields = retry_after.map(|after| [(RETRY_AFTER, after)]);
        std::future::ready(match fields {
            Some(fields) => axum::response::IntoResponse::into_response((status, fields)),
            None => axum::response::IntoResponse::into_response(status),
        })
    };
    (serve(Router::new().route("/", on_get(answer))).await, requests)
}

/// Until the block, which travels by itself, is to be seen by another process.
async fn blocked(there: &TokenBucket, key: &str) -> Duration {
    let mut blocked = Duration::ZERO;
    eventually("the key to be blocked", SOON, async || {
        blocked = there.peek(key).await.unwrap().blocked_for();
        !blocked.is_zero()
    })
    .await;
    blocked
}

async fn a_closure_reads_reqwest_responses(stores: Stores) {
    let (url, requests) = fed_up(StatusCode::TOO_MANY_REQUESTS, Some("30")).await;
    let guarded = |bucket: &TokenBucket| {
        let told = |response: &reqwest::Response| -> Option<Duration> {
            let after = response.headers().get(reqwest::header::RETRY_AFTER)?;
            Some(Duration::from_secs(after.to_str().ok()?.parse().ok()?))
        };
        let limit =
            RateLimitLayer::new(bucket.clone(), |_: &reqwest::Request| "upstream").block_on_response(told);
        ServiceBuilder::new().layer(limit).service(client())
    };
    let request = || reqwest::Request::new(reqwest::Method::GET, url.parse().unwrap());
    let (here, there) = (at_most(100, &stores.open()), at_most(100, &stores.open()));

    let response = guarded(&here).oneshot(request()).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "the first caller hears it for itself");
    blocked(&there, "upstream").await;
    let error = guarded(&there).oneshot(request()).await.unwrap_err();
    let after = error.downcast_ref::<Refusal>().unwrap().retry_after().unwrap();
    assert!((Duration::from_secs(15)..=Duration::from_secs(30)).contains(&after), "{after:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

/// A hyper client that believes Retry-After.
macro_rules! believing {
    ($bucket:expr, $retry_after:expr) => {
        ServiceBuilder::new()
            .layer(RateLimitLayer::new($bucket.clone(), host).block_on_response($retry_after))
            .service(Client::builder(TokioExecutor::new()).build_http::<String>())
    };
}

fn host(request: &Request<String>) -> Option<&str> {
    request.uri().host()
}

fn get(url: &str) -> Request<String> {
    Request::get(url).body(String::new()).unwrap()
}

async fn retry_after_reads_http_responses(stores: Stores) {
    let (url, requests) = fed_up(StatusCode::SERVICE_UNAVAILABLE, Some("30")).await;
    let (here, there) = (at_most(100, &stores.open()), at_most(100, &stores.open()));
    let response = believing!(here, RetryAfter::default()).oneshot(get(&url)).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    blocked(&there, "127.0.0.1").await;
    let error = believing!(there, RetryAfter::default()).oneshot(get(&url)).await.unwrap_err();
    assert!(error.downcast_ref::<Refusal>().is_some(), "{error}");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

async fn nobody_is_blocked_for_longer_than_is_believed(stores: Stores) {
    let (url, _) = fed_up(StatusCode::TOO_MANY_REQUESTS, Some("18446744073709551615")).await;
    let bucket = at_most(100, &stores.open());
    let limit = RetryAfter::at_most(Duration::from_secs(60)).unwrap();
    believing!(bucket, limit).oneshot(get(&url)).await.unwrap();
    let blocked = blocked(&bucket, "127.0.0.1").await;
    assert!((Duration::from_secs(30)..=Duration::from_secs(60)).contains(&blocked), "{blocked:?}");
}

async fn an_answer_without_retry_after_stops_nobody(stores: Stores) {
    let bucket = at_most(100, &stores.open());
    let cases = [
        (StatusCode::TOO_MANY_REQUESTS, None),
        (StatusCode::TOO_MANY_REQUESTS, Some("soon")),
        (StatusCode::TOO_MANY_REQUESTS, Some("-1")),
        (StatusCode::OK, Some("30")),
    ];
    for (status, retry_after) in cases {
        let (url, requests) = fed_up(status, retry_after).await;
        let mut guarded = believing!(bucket, RetryAfter::default());
        for _ in 0..2 {
            let response = guarded.ready().await.unwrap();
            let response = tower::Service::call(response, get(&url)).await.unwrap();
            assert_eq!(response.status(), status);
        }
        assert_eq!(requests.load(Ordering::SeqCst), 2, "{status} {retry_after:?}");
    }
    // A block would by now be seen: it would have left before this.
    bucket.block_for("marker", SOON).await.unwrap();
    assert_eq!(bucket.peek("127.0.0.1").await.unwrap().blocked_for(), Duration::ZERO);
}

/// Fractions, units and dates of RFC 3339 are in use, and other statuses than 429 and 503.
async fn whatever_refuses_and_however_it_says_so(stores: Stores) {
    let bucket = at_most(100, &stores.open());
    let cases = [
        (429, "299.997"),
        (429, "299.99700000000000001"),
        (429, "30.0"),
        (429, "30s"),
        (429, "2999-01-01T00:00:00Z"),
        (403, "30"),
        (529, "30"),
    ];
    for (status, retry_after) in cases {
        let status = StatusCode::from_u16(status).unwrap();
        let (url, requests) = fed_up(status, Some(retry_after)).await;
        assert_eq!(
            believing!(bucket, RetryAfter::default()).oneshot(get(&url)).await.unwrap().status(),
            status
        );
        blocked(&bucket, "127.0.0.1").await;
        let error = believing!(bucket, RetryAfter::default()).oneshot(get(&url)).await.unwrap_err();
        assert!(error.downcast_ref::<Refusal>().is_some(), "{error}");
        assert_eq!(requests.load(Ordering::SeqCst), 1, "{status} {retry_after}");
        bucket.reset("127.0.0.1").await.unwrap();
    }
}

/// Of a redirect, the field says when to follow it.
async fn what_is_no_refusal_stops_nobody(stores: Stores) {
    let bucket = at_most(100, &stores.open());
    for status in [StatusCode::OK, StatusCode::ACCEPTED, StatusCode::FOUND, StatusCode::NOT_MODIFIED] {
        let (url, _) = fed_up(status, Some("30")).await;
        assert_eq!(
            believing!(bucket, RetryAfter::default()).oneshot(get(&url)).await.unwrap().status(),
            status
        );
    }
    bucket.block_for("marker", SOON).await.unwrap();
    assert_eq!(bucket.peek("127.0.0.1").await.unwrap().blocked_for(), Duration::ZERO);
}
