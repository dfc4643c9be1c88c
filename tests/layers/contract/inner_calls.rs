//! The inner service is called after the decision.

use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower::{Service as _, ServiceExt as _};
use tower_distributed::{Refusal, Store};
use tower_test::{assert_request_eq, mock};

use super::subjects::{
    ConcurrencyLimit, Dedupe, Mutex, RateLimit, Refusing, RwLock, SeveralLimits, Subject, on_subjects,
};
use crate::probe::Probe;
use crate::stores::{SOON, Stores};
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::{eventually, spend_budget};

on_subjects!(refusing: errors_of_calls_are_passed_on, a_task_whose_budget_is_spent_is_served_too);
on_subjects!(all: one_operation_decides);

/// Nothing is asked for twice. In memory nothing is sent.
async fn one_operation_decides<T: Subject>(stores: Stores) {
    let store = stores.open();
    let (inner, mut handle) = mock::pair::<String, String>();
    let mut service = T::around(&T::layer(&store), inner);
    let before = store.stats().operations;
    let call = tokio::spawn(service.ready().await.unwrap().call("ann:1".into()));
    assert_request_eq!(handle, "ann:1").send_response("hello".into());
    let operations = store.stats().operations - before;
    assert!(operations <= 1, "{operations}");
    assert_eq!(call.await.unwrap().unwrap(), "hello");
}

async fn errors_of_calls_are_passed_on<T: Refusing>(stores: Stores) {
    let (inner, mut handle) = mock::pair::<String, String>();
    let mut service = T::around(&T::layer(&stores.open()), inner);
    let failed = tokio::spawn(service.ready().await.unwrap().call("ann:1".into()));
    assert_request_eq!(handle, "ann:1").send_error("out of order");
    let error = failed.await.unwrap().unwrap_err();
    assert!(!error.is::<Refusal>() && error.to_string() == "out of order", "{error}");
    // A failed call was a call.
    T::becomes(&stores, "ann", T::CALLED).await;
}

async fn a_task_whose_budget_is_spent_is_served_too<T: Refusing>(stores: Stores) {
    let probe = Probe::default();
    let mut service = T::around(&T::layer(&stores.open()), probe.clone());
    let call = tokio::spawn(async move {
        let call = service.ready().await.unwrap().call("ann:1".into());
        spend_budget().await;
        call.await
    });
    assert_eq!(call.await.unwrap().unwrap(), "ann:1");
    assert_eq!(probe.calls(), 1);
    T::becomes(&stores, "ann", T::ANSWERED).await;
}

#[tokio::test]
async fn while_redis_is_silent_nothing_arrives() {
    async fn check<T: Refusing>(store: &Store, proxy: &FaultProxy, name: &str) {
        // Some subjects share a bucket.
        let [warm_up, ann] = ["warm-up", "ann"].map(|key| format!("{key} {name}:1"));
        let (inner, mut handle) = mock::pair::<String, String>();
        let mut service = T::around(&T::layer(store), inner);
        let warmed_up = tokio::spawn(service.ready().await.unwrap().call(warm_up.clone()));
        assert_request_eq!(handle, warm_up).send_response("hello".into());
        warmed_up.await.unwrap().unwrap();

        proxy.stall();
        let mut call = task::spawn(service.ready().await.unwrap().call(ann.clone()));
        assert_pending!(call.poll());
        assert_pending!(handle.poll_request());
        proxy.heal();
        eventually("the decision", SOON, async || call.is_woken()).await;
        assert_pending!(handle.poll_request());
        let call = tokio::spawn(call.into_inner());
        assert_request_eq!(handle, ann).send_response("hello".into());
        assert_eq!(call.await.unwrap().unwrap(), "hello");
    }
    let redis = RedisServer::start().await;
    let proxy = FaultProxy::start(redis.port()).await;
    let store = Store::builder().timeout(Duration::from_secs(60)).redis(&proxy.url()).unwrap();
    check::<RateLimit>(&store, &proxy, "RateLimit").await;
    check::<SeveralLimits>(&store, &proxy, "SeveralLimits").await;
    check::<ConcurrencyLimit>(&store, &proxy, "ConcurrencyLimit").await;
    check::<Mutex>(&store, &proxy, "Mutex").await;
    check::<RwLock>(&store, &proxy, "RwLock").await;
    check::<Dedupe>(&store, &proxy, "Dedupe").await;
}
