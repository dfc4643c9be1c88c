//! A tonic server behind the layers: what its clients get is a status.

use std::time::Duration;

use http::Request;
use tonic::Code;
use tonic::body::Body;
use tonic_health::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tower_distributed::extract::header;
use tower_distributed::response::{LeaseEnd, UntilBodyEnd};
use tower_distributed::{ConcurrencyLimitLayer, RwLockLayer, grpc};

use crate::families::{Other, becomes_free, locks, permits};
use crate::health::{check, question, retry_delay, serve_health};
use crate::stores::{SOON, Stores, away, on_each_store};
use support::eventually;

on_each_store!(
    no_permit_is_resource_exhausted,
    a_lock_that_is_held_is_aborted,
    a_wait_that_is_too_long_ends_as_unavailable,
    what_can_never_be_is_an_invalid_argument,
    a_permit_is_held_while_a_stream_lasts,
    a_silent_stream_goes_on_without_its_permit,
    a_stream_that_is_held_too_long_is_reset,
);

async fn no_permit_is_resource_exhausted(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), header("x-tenant").unwrap().plain());
    let channel = serve_health!(limit.reject_with(grpc::refuse()));
    let status = check(&channel, "ann").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "no permit is free"));
    // No release is known yet that an estimate could be made of.
    assert!(retry_delay(&status).is_none(), "{status:?}");
    check(&channel, "bob").await.unwrap();
    other.leaves().await;
    check(&channel, "ann").await.unwrap();
}

async fn a_lock_that_is_held_is_aborted(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let lock = RwLockLayer::new(locks(&stores.open()), header("x-tenant").unwrap().plain());
    let channel = serve_health!(lock.reject_with(grpc::refuse()));
    let status = check(&channel, "ann").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Aborted, "the lock is held"));
    assert!(retry_delay(&status) == Some(Duration::from_secs(5)), "{status:?}");
    check(&channel, "bob").await.unwrap();
    other.leaves().await;
    check(&channel, "ann").await.unwrap();
}

async fn a_wait_that_is_too_long_ends_as_unavailable(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), header("x-tenant").unwrap().plain());
    let limited = serve_health!(limit.max_wait(Duration::from_millis(20)).reject_with(grpc::refuse()));
    let lock = RwLockLayer::new(locks(&stores.open()), header("x-tenant").unwrap().plain());
    let locked = serve_health!(lock.max_wait(Duration::from_millis(20)).reject_with(grpc::refuse()));
    for channel in [limited, locked] {
        let status = check(&channel, "ann").await.unwrap_err();
        assert_eq!((status.code(), retry_delay(&status)), (Code::Unavailable, None));
    }
    other.leaves().await;
}

async fn what_can_never_be_is_an_invalid_argument(stores: Stores) {
    let group = permits(&stores.open(), 2);
    let limit = ConcurrencyLimitLayer::new(group.clone(), header("x-tenant").unwrap().plain());
    let limit = limit.reject_with(grpc::refuse());
    let status = check(&serve_health!(limit.clone().weight(|_: &Request<Body>| 3)), "ann").await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let closed = serve_health!(limit.clone().limit(|_: &Request<Body>| Some(0)));
    assert_eq!(check(&closed, "ann").await.unwrap_err().code(), Code::ResourceExhausted);
    group.close();
    assert_eq!(check(&serve_health!(limit), "ann").await.unwrap_err().code(), Code::Unavailable);
}

async fn a_permit_is_held_while_a_stream_lasts(stores: Stores) {
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), header("x-tenant").unwrap().plain());
    let channel = serve_health!(limit.hold(UntilBodyEnd::default()).reject_with(grpc::refuse()));
    let mut client = HealthClient::new(channel.clone());
    let mut stream = client.watch(question("ann")).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    assert_eq!(check(&channel, "ann").await.unwrap_err().code(), Code::ResourceExhausted);
    drop(stream);
    becomes_free(&stores, "ann").await;
    eventually("the permit to be back", SOON, async || check(&channel, "ann").await.is_ok()).await;
}

async fn a_silent_stream_goes_on_without_its_permit(stores: Stores) {
    let (reporter, health) = tonic_health::server::health_reporter();
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), header("x-tenant").unwrap().plain());
    let hold = UntilBodyEnd::default().idle_timeout(Duration::from_millis(50)).unwrap();
    let channel = serve_health!(limit.hold(hold).reject_with(grpc::refuse()), health);
    let mut stream = HealthClient::new(channel.clone()).watch(question("ann")).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    becomes_free(&stores, "ann").await;
    reporter.set_service_status("", ServingStatus::NotServing).await;
    let news = stream.message().await.unwrap().unwrap();
    assert_eq!(news.status(), tonic_health::pb::health_check_response::ServingStatus::NotServing);
}

async fn a_stream_that_is_held_too_long_is_reset(stores: Stores) {
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), header("x-tenant").unwrap().plain());
    let hold = UntilBodyEnd::default().max_hold(Duration::from_millis(50)).unwrap();
    let hold = hold.on_lease_end(LeaseEnd::Abort);
    let channel = serve_health!(limit.hold(hold).reject_with(grpc::refuse()));
    let mut stream = HealthClient::new(channel.clone()).watch(question("ann")).await.unwrap().into_inner();
    // The first message may be late.
    let status = match stream.message().await {
        Ok(_) => stream.message().await.unwrap_err(),
        Err(status) => status,
    };
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    becomes_free(&stores, "ann").await;
}

#[tokio::test]
async fn an_outage_is_unavailable() {
    let limit = ConcurrencyLimitLayer::new(permits(&away(), 1), header("x-tenant").unwrap().plain());
    let lock = RwLockLayer::new(locks(&away()), header("x-tenant").unwrap().plain());
    for channel in
        [serve_health!(limit.reject_with(grpc::refuse())), serve_health!(lock.reject_with(grpc::refuse()))]
    {
        let status = check(&channel, "ann").await.unwrap_err();
        assert_eq!(
            (status.code(), retry_delay(&status)),
            (Code::Unavailable, Some(std::time::Duration::from_secs(1)))
        );
        assert!(!status.message().contains("127.0.0.1"), "the cause is ours alone: {status}");
    }
}
