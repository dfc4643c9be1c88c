//! What the layer asks: the key, by a closure over any type of request; and what it shows to those that it handles.

use std::convert::Infallible;
use std::future::ready;

use futures::FutureExt as _;
use tokio_test::{assert_ready, task};
use tower::{BoxError, Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::{LeaseHandle, SingleFlightLayer};

use crate::flights::{becomes_free, build, builder, by_name, layer};
use crate::probe::Probe;
use crate::stores::{Stores, away, on_each_store};

on_each_store!(what_leads_is_shown_its_lease);

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

#[tokio::test]
async fn what_flies_is_handled_by_its_caller() {
    for request in ["passes", "ann:1"] {
        let flight = build::<Infallible>(builder(), &tower_distributed::Store::in_memory());
        let handle = service_fn(async |_: String| Ok(tokio::task::id().to_string()));
        let service = SingleFlightLayer::new(flight, by_name).layer(handle);
        let call = tokio::spawn(async { (service.oneshot(request.into()).await, tokio::task::id()) });
        let (handled, here) = call.await.unwrap();
        assert_eq!(handled.unwrap(), here.to_string(), "{request}");
    }
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
