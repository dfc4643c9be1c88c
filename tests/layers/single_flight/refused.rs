//! What happens while the store is away.

use futures::future::join_all;
use std::convert::Infallible;
use tokio_test::{assert_pending, task};
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::StoreFailure;
use tower_distributed::{LeaseHandle, Refusal, RefusalKind, SingleFlightLayer, Store};

use crate::flights::{build, builder, by_name, kind};
use crate::probe::Probe;
use crate::stores::{SOON, away};
use support::eventually;
use support::redis_server::RedisServer;

#[tokio::test]
async fn an_outage_refuses_where_the_flight_says_so() {
    let flight = build::<Infallible>(builder().on_store_failure(StoreFailure::FailClosed), &away());
    let probe = Probe::default();
    let service = SingleFlightLayer::new(flight, by_name).layer(probe.clone());
    let calls = (0..6).map(|number| service.clone().oneshot(format!("ann:{number}")));
    for outcome in join_all(calls).await {
        let error = outcome.unwrap_err();
        let refusal = error.downcast_ref::<Refusal>().unwrap();
        let soon = Some(std::time::Duration::from_secs(1));
        assert_eq!((refusal.kind(), refusal.retry_after()), (RefusalKind::StoreUnavailable, soon));
        assert!(std::error::Error::source(refusal).is_some(), "{refusal:?}");
    }
    assert_eq!(probe.calls(), 0);
}

#[tokio::test]
async fn alone_it_is_shared_within_the_process() {
    let flight = build::<Infallible>(builder(), &away());
    let probe = Probe::yielding(2);
    let service = SingleFlightLayer::new(flight, by_name)
        .on_lease(|_: &LeaseHandle, _: &mut String| panic!("there is no lease"))
        .layer(probe.clone());
    let all = (0..6).map(|number| service.clone().oneshot(format!("ann:{number}")));
    for outcome in join_all(all).await {
        assert!(outcome.unwrap().starts_with("ann:"));
    }
    assert_eq!(probe.calls(), 1);
}

/// Whoever is at work when the store goes away is not concerned, and those of its process get its answer.
#[tokio::test]
async fn requests_at_work_survive_an_outage() {
    let redis = RedisServer::start().await;
    let flight =
        build(builder().on_store_failure(StoreFailure::FailClosed), &Store::redis(&redis.url()).unwrap());
    let (inner, mut handle) = tower_test::mock::pair::<String, String>();
    let service = SingleFlightLayer::new(flight, by_name).layer(inner);
    let call = tokio::spawn(service.clone().oneshot("ann:1".into()));
    let (_, answer) = handle.next_request().await.unwrap();
    let mut follower = task::spawn(service.clone().oneshot("ann:2".into()));
    assert_pending!(follower.poll());
    redis.kill9();
    answer.send_response("hello".into());
    assert_eq!(call.await.unwrap().unwrap(), "hello");
    assert_eq!(follower.await.unwrap(), "hello");
    let error = service.clone().oneshot("ann:3".into()).await.unwrap_err();
    assert_eq!(kind(&error), Some(RefusalKind::StoreUnavailable));
    redis.restart().await;
    eventually("the store to be back", SOON, async || {
        let again = tokio::spawn(service.clone().oneshot("ann:4".into()));
        tokio::select! {
            Some((_, answer)) = handle.next_request() => answer.send_response("again".into()),
            () = async { while !again.is_finished() { tokio::task::yield_now().await } } => {}
        }
        again.await.unwrap().is_ok_and(|text| text == "again")
    })
    .await;
}
