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
use tower_distributed::{RateLimitLayer, Refusal};

use crate::net::serve;
use crate::stores::{SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(whatever_refuses_and_however_it_says_so);

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

/// A hyper client that believes Retry-After.
macro_rules! believing {
    ($bucket:expr) => {
        ServiceBuilder::new()
            .layer(RateLimitLayer::new($bucket.clone(), host).block_on_response(RetryAfter::default()))
            .service(Client::builder(TokioExecutor::new()).build_http::<String>())
    };
}

fn host(request: &Request<String>) -> Option<&str> {
    request.uri().host()
}

fn get(url: &str) -> Request<String> {
    Request::get(url).body(String::new()).unwrap()
}

/// Fractions, units and dates of RFC 3339 are in use, and other statuses than 429 and 503. What is no refusal, or does not
/// say when, stops nobody.
async fn whatever_refuses_and_however_it_says_so(stores: Stores) {
    let (here, there) = (at_most(100, &stores.open()), at_most(100, &stores.open()));
    let cases = [
        (429, Some("299.997"), true),
        (429, Some("30s"), true),
        (429, Some("2999-01-01T00:00:00Z"), true),
        (503, Some("30"), true),
        (403, Some("30"), true),
        (529, Some("30"), true),
        (429, None, false),
        (429, Some("soon"), false),
        (200, Some("30"), false),
        (302, Some("30"), false),
    ];
    for (status, retry_after, stops) in cases {
        let status = StatusCode::from_u16(status).unwrap();
        let (url, requests) = fed_up(status, retry_after).await;
        let response = believing!(here).oneshot(get(&url)).await.unwrap();
        assert_eq!(response.status(), status, "the first caller hears it for itself");
        if stops {
            // Until the block, which travels by itself, is to be seen by another process.
            eventually("the key to be blocked", SOON, async || {
                !there.peek("127.0.0.1").await.unwrap().blocked_for().is_zero()
            })
            .await;
            let error = believing!(there).oneshot(get(&url)).await.unwrap_err();
            let after = error.downcast_ref::<Refusal>().unwrap().retry_after().unwrap();
            assert!(after > Duration::from_secs(15), "{after:?}");
            for bucket in [&here, &there] {
                bucket.reset("127.0.0.1").await.unwrap();
            }
        } else {
            // A block would by now be seen: it would have left before this.
            here.block_for("marker", SOON).await.unwrap();
            assert_eq!(there.peek("127.0.0.1").await.unwrap().blocked_for(), Duration::ZERO);
        }
        assert_eq!(requests.load(Ordering::SeqCst), 1, "{status} {retry_after:?}");
    }
}
