//! What the layer asks: the key, by a closure over any type of request; and what it shows to those that it handles.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use futures::FutureExt as _;
use tokio::sync::Notify;
use tokio_test::{assert_ready, task};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::{LeaseHandle, SingleFlightLayer};

use crate::flights::{becomes_free, build, builder, by_name, layer};
use crate::probe::Probe;
use crate::stores::{Stores, away, on_each_store};

on_each_store!(each_key_flies_by_itself, what_leads_is_shown_its_lease);

async fn each_key_flies_by_itself(stores: Stores) {
    let probe = Probe::yielding(2);
    let service = layer::<Infallible>(&stores).layer(probe.clone());
    let keys = ["ann", "bob", "", "{}", "a\0b", "a", "ann\n"];
    for round in 0..3 {
        let calls = keys.iter().map(|key| service.clone().oneshot(format!("{key}:{round}")));
        for (outcome, key) in futures::future::join_all(calls).await.into_iter().zip(keys) {
            assert_eq!(outcome.unwrap(), format!("{key}:0"));
        }
    }
    assert_eq!(probe.calls(), keys.len());
}

#[test]
fn without_a_key_requests_pass_untouched() {
    let flight = build::<Infallible>(builder(), &away());
    let layer = SingleFlightLayer::new(flight, by_name)
        .on_lease(|_: &LeaseHandle, _: &mut String| panic!("there is no lease"));
    let probe = Probe::yielding(1);
    let mut service = layer.layer(probe.clone());
    // There is no runtime that anything could be spawned in.
    for number in 0..3 {
        assert!(service.ready().now_or_never().unwrap().is_ok());
        let mut call = task::spawn(service.call(number.to_string()));
        assert_eq!(probe.running(), 1, "the inner service is called at once");
        assert!(call.poll().is_pending());
        assert_eq!(assert_ready!(call.poll()).unwrap(), number.to_string());
        drop(call);
        assert_eq!(probe.running(), 0);
    }
    let hanging = layer.layer(Probe::hanging());
    let mut call = task::spawn(hanging.oneshot("passes".into()));
    assert!(call.poll().is_pending());
}

/// Whether a request was handled in the task in which its handling began.
fn stays(began: Arc<Notify>, goes_on: Arc<Notify>) -> Service {
    BoxCloneSyncService::new(service_fn(move |_| {
        let (began, goes_on) = (Arc::clone(&began), Arc::clone(&goes_on));
        async move {
            let first = tokio::task::try_id();
            began.notify_one();
            goes_on.notified().await;
            Ok((first == tokio::task::try_id()).to_string())
        }
    }))
}

/// The task that a request is handled in.
fn task_of() -> Service {
    BoxCloneSyncService::new(service_fn(|_| async { Ok(tokio::task::id().to_string()) }))
}

type Service = BoxCloneSyncService<String, String, Infallible>;

#[tokio::test]
async fn what_flies_is_handled_by_its_caller() {
    for request in ["passes", "ann:1"] {
        let flight = build(builder(), &tower_distributed::Store::in_memory());
        let service = SingleFlightLayer::new(flight, by_name).layer(task_of());
        let call = tokio::spawn(async { (service.oneshot(request.into()).await, tokio::task::id()) });
        let (handled, here) = call.await.unwrap();
        assert_eq!(handled.unwrap(), here.to_string(), "{request}");
    }
}

#[tokio::test]
async fn what_others_wait_for_is_handled_in_a_task_of_its_own() {
    let (began, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let flight = build(builder(), &tower_distributed::Store::in_memory());
    let layer = SingleFlightLayer::new(flight, by_name);
    let service = layer.layer(stays(Arc::clone(&began), Arc::clone(&goes_on)));
    let mut leader = task::spawn(service.clone().oneshot("ann:1".into()));
    assert!(leader.poll().is_pending());
    began.notified().await;
    // It is not polled until the other has the response.
    let mut follower = task::spawn(service.oneshot("ann:2".into()));
    assert!(follower.poll().is_pending());
    goes_on.notify_one();
    assert_eq!(follower.await.unwrap(), "false");
    assert_eq!(leader.await.unwrap(), "false");
}

fn show(lease: &LeaseHandle, request: &mut String) {
    assert!(lease.is_held() && lease.key().as_bytes() == b"ann" && !lease.token().is_empty());
    request.push_str(&format!("/{:?}", lease.fence()));
}

async fn what_leads_is_shown_its_lease(stores: Stores) {
    let layer = layer::<Infallible>(&stores).on_lease(show);
    let told = layer.layer(Probe::default()).oneshot("ann:1".into()).await.unwrap();
    assert!(told.starts_with("ann:1/"), "{told}");
    assert_eq!(layer.layer(Probe::default()).oneshot("ann:2".into()).await.unwrap(), told);
    becomes_free(&stores, "ann").await;
}

/// A request that is neither `Clone` nor `Sync`, and an answer that is a type of the caller's.
#[tokio::test]
async fn requests_need_not_be_cloned() {
    struct Asked(std::cell::Cell<u32>);
    let flight = build::<Infallible>(builder(), &tower_distributed::Store::in_memory());
    let service = SingleFlightLayer::new(flight, |asked: &Asked| asked.0.get())
        .layer(service_fn(|asked: Asked| ready(Ok::<_, Infallible>(asked.0.get().to_string()))));
    let answer: Result<String, BoxError> = service.oneshot(Asked(7.into())).await;
    assert_eq!(answer.unwrap(), "7");
}

#[tokio::test]
async fn a_panic_of_the_key_is_its_callers_own() {
    let flight = build::<Infallible>(builder(), &tower_distributed::Store::in_memory());
    let by = |request: &String| request.strip_prefix("key:").expect("a key").to_owned();
    let service = SingleFlightLayer::new(flight, by).layer(Probe::default());
    assert!(tokio::spawn(service.clone().oneshot("none".into())).await.unwrap_err().is_panic());
    let answer: Result<_, BoxError> = service.oneshot("key:1".into()).await;
    assert!(!answer.unwrap_or_default().is_empty());
}
