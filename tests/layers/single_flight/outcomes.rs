//! What becomes of the others when the inner service fails, panics, or never ends.

use futures::future::join_all;
use tokio_test::{assert_pending, task};
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::{RefusalKind, SingleFlightLayer, Store, StoreFailure};

use crate::flights::{Failed, Text, becomes_free, build, builder, by_name, kind, layer, moody};
use crate::probe::Probe;
use crate::stores::{HOUR, Stores, on_each_store};
use support::redis_server::RedisServer;

on_each_store!(an_error_is_its_callers_own, an_error_is_shared_where_the_flight_says_so,);

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

async fn an_error_is_shared_where_the_flight_says_so(stores: Stores) {
    let probe = Probe::yielding(2);
    let services = [(); 2].map(|()| {
        let flight = build(builder().share_errors(Text).error_ttl(HOUR), &stores.open());
        SingleFlightLayer::new(flight, by_name).layer(moody(&probe))
    });
    let calls = (0..5).map(|number| services[number % 2].clone().oneshot(format!("ann:{number}!")));
    let told = join_all(calls).await.into_iter();
    let mut told: Vec<_> =
        told.map(|outcome| outcome.unwrap_err().downcast_ref::<Failed>().unwrap().0.clone()).collect();
    told.dedup();
    assert_eq!((told.len(), probe.calls()), (1, 1), "{told:?}");
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
