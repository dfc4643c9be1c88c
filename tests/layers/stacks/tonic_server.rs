//! A tonic server behind the layer: what its clients get is a status.

use std::time::Duration;

use http::Request;
use tonic::Code;
use tonic::body::Body;
use tower_distributed::extract::{client_ip, header};
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, grpc};

use crate::health::{check, retry_delay, serve_health};
use crate::stores::{Stores, at_most, away, on_each_store};

on_each_store!(
    refusals_are_resource_exhausted_with_a_retry_delay,
    what_never_refills_names_no_delay,
    cost_above_the_burst_is_an_invalid_argument,
    peers_are_known_by_their_address,
    a_missing_part_is_an_invalid_argument,
);

async fn refusals_are_resource_exhausted_with_a_retry_delay(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(2, &stores.open()), header("x-tenant").unwrap().plain());
    let channel = serve_health!(limit.reject_with(grpc::refuse()));
    check(&channel, "ann").await.unwrap();
    check(&channel, "ann").await.unwrap();
    let status = check(&channel, "ann").await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let delay = retry_delay(&status);
    let within = Duration::from_secs(3500)..=Duration::from_secs(3600);
    assert!(delay.is_some_and(|delay| within.contains(&delay)), "{delay:?}");
    check(&channel, "bob").await.unwrap();
}

async fn a_missing_part_is_an_invalid_argument(stores: Stores) {
    let limit = grpc::rate_limit(at_most(2, &stores.open()), client_ip().and(header("x-account").unwrap()));
    let status = check(&serve_health!(limit), "ann").await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "the header field x-account is missing");
}

async fn what_never_refills_names_no_delay(stores: Stores) {
    let bucket = TokenBucket::new(&stores.open(), "trial", Quota::non_refilling(1)).unwrap();
    let limit = RateLimitLayer::new(bucket.clone(), header("x-tenant").unwrap().plain());
    let channel = serve_health!(limit.reject_with(grpc::refuse()));
    check(&channel, "ann").await.unwrap();
    let status = check(&channel, "ann").await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(retry_delay(&status).is_none());
    bucket.reset("ann").await.unwrap();
}

async fn cost_above_the_burst_is_an_invalid_argument(stores: Stores) {
    let limit = RateLimitLayer::new(at_most(2, &stores.open()), header("x-tenant").unwrap().plain())
        .cost(|_: &Request<Body>| 3);
    let status = check(&serve_health!(limit.reject_with(grpc::refuse())), "ann").await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(retry_delay(&status).is_none());
}

async fn peers_are_known_by_their_address(stores: Stores) {
    let bucket = at_most(1, &stores.open());
    let channel = serve_health!(RateLimitLayer::new(bucket.clone(), client_ip()).reject_with(grpc::refuse()));
    check(&channel, "ann").await.unwrap();
    assert_eq!(check(&channel, "bob").await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(bucket.peek("127.0.0.1").await.unwrap().remaining(), 0);
}

#[tokio::test]
async fn an_outage_is_unavailable() {
    let limit = RateLimitLayer::new(at_most(1, &away()), header("x-tenant").unwrap().plain());
    let channel = serve_health!(limit.reject_with(grpc::refuse()));
    // More than enough for the breaker to open.
    for _ in 0..6 {
        let status = check(&channel, "ann").await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(retry_delay(&status).is_some());
        assert!(!status.message().contains("127.0.0.1"), "the cause is ours alone: {status}");
    }
}

#[tokio::test]
async fn requests_wait_for_their_turn() {
    let period = Duration::from_millis(50);
    let bucket = TokenBucket::new(&Store::in_memory(), "requests", Quota::new(1, period)).unwrap();
    let limit =
        RateLimitLayer::new(bucket, header("x-tenant").unwrap().plain()).max_wait(Duration::from_secs(60));
    let channel = serve_health!(limit.reject_with(grpc::refuse()));
    let began = std::time::Instant::now();
    let outcomes = futures::future::join_all((0..4).map(|_| check(&channel, "ann"))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!(began.elapsed() >= 3 * period, "{:?}", began.elapsed());
}
