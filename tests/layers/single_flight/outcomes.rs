//! What becomes of the others when the inner service fails, panics, or never ends.

use std::convert::Infallible;
use std::time::Duration;

use futures::future::join_all;
use tokio_test::{assert_pending, task};
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::{RefusalKind, SingleFlightLayer, Store, StoreFailure};

use crate::flights::{becomes_free, build, builder, by_name, kind, layer, moody};
use crate::probe::Probe;
use crate::stores::{Stores, on_each_store};
use support::redis_server::RedisServer;

on_each_store!(an_error_is_its_callers_own, a_panic_is_its_callers_own, nobody_follows_for_ever);

async fn an_error_is_its_callers_own(stores: Stores) {
    let probe = Probe::yielding(2);
    let services = [(); 2].map(|()| layer(&stores).layer(moody(&probe)));
    let calls = (0..5).map(|number| services[number % 2].clone().oneshot(format!("ann:{number}!")));
    for (number, outcome) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(outcome.unwrap_err().to_string(), format!("ann:{number}!"));
    }
    assert_eq!(probe.calls(), 5);
    becomes_free(&stores, "ann").await;
}

async fn a_panic_is_its_callers_own(stores: Stores) {
    let probe = Probe::yielding(2);
    let (here, there) = (layer(&stores).layer(moody(&probe)), layer(&stores).layer(moody(&probe)));
    let mut calls = Vec::new();
    for (service, request) in [(&here, "ann:1?"), (&here, "ann:2?"), (&there, "ann:3?"), (&there, "ann:4?")] {
        calls.push((request, tokio::spawn(service.clone().oneshot(request.to_owned()))));
    }
    for (request, call) in calls {
        let panic = call.await.unwrap_err().into_panic();
        assert_eq!(*panic.downcast_ref::<String>().unwrap(), request);
    }
    assert_eq!((probe.calls(), probe.running()), (4, 0));
    assert_eq!(here.oneshot("ann:5".into()).await.unwrap(), "ann:5");
}

async fn nobody_follows_for_ever(stores: Stores) {
    let probe = Probe::hanging();
    let service = || {
        let flight = build::<Infallible>(builder().max_wait(Duration::from_millis(50)), &stores.open());
        SingleFlightLayer::new(flight, by_name).layer(probe.clone())
    };
    let (here, there) = (service(), service());
    let mut leader = task::spawn(here.clone().oneshot("ann:1".into()));
    probe.runs(1, &mut leader).await;
    for service in [&here, &there, &here] {
        let error = service.clone().oneshot("ann:2".into()).await.unwrap_err();
        assert_eq!(kind(&error), Some(RefusalKind::WaitedTooLong));
    }
    assert_pending!(leader.poll());
    assert_eq!(
        (probe.calls(), probe.running()),
        (1, 1),
        "whose request is handled waits for as long as it takes"
    );
    drop(leader);
    becomes_free(&stores, "ann").await;
}

/// Whoever is at work when the store goes away is not concerned, and those of its process get its answer.
#[tokio::test]
async fn requests_at_work_survive_an_outage() {
    let redis = RedisServer::start().await;
    let store = Store::redis(&redis.url()).unwrap();
    let flight = build(builder().on_store_failure(StoreFailure::FailClosed), &store);
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
    let error = service.oneshot("ann:3".into()).await.unwrap_err();
    assert_eq!(kind(&error), Some(RefusalKind::StoreUnavailable));
}
