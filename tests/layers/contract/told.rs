//! How refusals are told, over HTTP and over gRPC: when to come back, where that is known, and nothing of the cause.

use std::convert::Infallible;
use std::fmt::Debug;
use std::net::IpAddr;
use std::time::Duration;

use http::{Request, Response};
use serde_json::Value;
use tokio_test::task;
use tonic::Code;
use tower::{BoxError, Layer, Service, ServiceExt as _};
use tower_distributed::extract::{client_ip, header, host, query};
use tower_distributed::response::refuse;
use tower_distributed::{
    Quota, RateLimitLayer, Refusal, Reject as _, SingleFlightLayer, Store, TokenBucket, grpc,
};

use crate::flights::{build, builder, by_name};
use crate::health::retry_delay;
use crate::probe::Probe;
use crate::stores::{Stores, at_most, away};

async fn refusal<Req, S>(layer: impl Layer<Probe, Service = S>, request: Req) -> Refusal
where
    S: Service<Req, Response: Debug, Error = BoxError>,
{
    let probe = Probe::default();
    let error = layer.layer(probe.clone()).oneshot(request).await.unwrap_err();
    assert_eq!(probe.calls(), 0, "{error}");
    *error.downcast::<Refusal>().unwrap()
}

fn everything(_: &u32) -> &'static str {
    "everything"
}

/// Of a bucket whose tokens are used up.
async fn limited(quota: Quota) -> Refusal {
    let bucket = TokenBucket::new(&Store::in_memory(), "requests", quota).unwrap();
    bucket.allow("everything").await.unwrap();
    refusal(RateLimitLayer::new(bucket, everything), 1).await
}

/// Of a store in which one more key is one too many.
async fn overloaded() -> Refusal {
    let store = Store::builder().max_keys(1).in_memory().unwrap();
    at_most(9, &store).allow("a key").await.unwrap();
    refusal(RateLimitLayer::new(at_most(9, &store), everything), 1).await
}

/// Of who waits for a flight in another process.
async fn waited() -> Refusal {
    let stores = Stores::in_memory();
    let probe = Probe::hanging();
    let leads = crate::flights::layer::<Infallible>(&stores).layer(probe.clone());
    let mut leader = task::spawn(leads.oneshot("ann:1".to_owned()));
    probe.runs(1, &mut leader).await;
    let short = build::<Infallible>(builder().max_wait(Duration::from_millis(30)), &stores.open());
    refusal(SingleFlightLayer::new(short, by_name), "ann:2".to_owned()).await
}

/// A request without any part of a key but its peer.
fn bare() -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(IpAddr::from([192, 0, 2, 7]));
    request
}

#[tokio::test(start_paused = true)]
async fn refusals_over_http_and_grpc() {
    let bucket = || at_most(2, &Store::in_memory());
    let dear = RateLimitLayer::new(bucket(), everything).cost(|_: &u32| 3);
    let without_tenant = RateLimitLayer::new(bucket(), client_ip().and(header("x-tenant").unwrap()));
    let one_of_two = RateLimitLayer::new(bucket(), (client_ip(), header("x-tenant").unwrap()));
    let exceeded = "Quota exceeded";
    let reduced = "Temporarily reduced capacity";
    let bad = "Bad Request";
    // The refusal; status, Retry-After, title and a part of the detail; the code, and the delay where there is one.
    for (refusal, (status, after, title, detail), code) in [
        (limited(Quota::per_hour(1)).await, (429, Some(3600), exceeded, ""), Code::ResourceExhausted),
        // What ends within the second is told as one second, never as none.
        (
            limited(Quota::new(1, Duration::from_millis(300))).await,
            (429, Some(1), exceeded, ""),
            Code::ResourceExhausted,
        ),
        (limited(Quota::non_refilling(1)).await, (429, None, exceeded, ""), Code::ResourceExhausted),
        (refusal(dear, 1).await, (400, None, bad, "burst of 2"), Code::InvalidArgument),
        // The body is JSON, whatever the name of the part.
        (
            refusal(RateLimitLayer::new(bucket(), query("a\"b\\c\n")), bare()).await,
            (400, None, bad, "the query parameter a\"b\\c\n is missing"),
            Code::InvalidArgument,
        ),
        (
            refusal(RateLimitLayer::new(bucket(), host()), bare()).await,
            (400, None, bad, "the request has no host"),
            Code::InvalidArgument,
        ),
        (
            refusal(without_tenant, bare()).await,
            (400, None, bad, "the header field x-tenant is missing"),
            Code::InvalidArgument,
        ),
        (
            refusal(one_of_two, bare()).await,
            (400, None, bad, "the header field x-tenant is missing"),
            Code::InvalidArgument,
        ),
        (waited().await, (503, None, reduced, ""), Code::Unavailable),
        (overloaded().await, (503, Some(1), reduced, ""), Code::Unavailable),
        (
            refusal(RateLimitLayer::new(at_most(9, &away()), everything), 1).await,
            (503, Some(1), "Service Unavailable", ""),
            Code::Unavailable,
        ),
    ] {
        let response: Result<Response<String>, Infallible> = refuse().reject(refusal.clone());
        let Ok(response) = response;
        let told: Value = serde_json::from_str(response.body()).unwrap();
        let seconds =
            response.headers().get("retry-after").map(|after| after.to_str().unwrap().parse().unwrap());
        assert_eq!((response.status().as_u16(), seconds), (status, after), "{refusal}");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert_eq!((told["status"].as_u64(), told["title"].as_str()), (Some(status.into()), Some(title)));
        assert!(told["detail"].as_str().unwrap_or_default().contains(detail), "{told}");

        let answer = grpc::status(&refusal);
        assert_eq!((answer.code(), retry_delay(&answer)), (code, refusal.retry_after()), "{refusal}");
        assert!(answer.message().contains(detail), "{answer}");
        for cause in ["127.0.0.1", "max_keys"] {
            assert!(!response.body().contains(cause) && !answer.message().contains(cause), "{answer}");
        }
    }
}
