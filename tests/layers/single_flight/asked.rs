//! What the layer asks: the key, by a closure over any type of request; and what it shows to those that it handles.

use std::convert::Infallible;

use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};
use tower_distributed::{LeaseHandle, SingleFlightLayer};

use crate::flights::{becomes_free, build, builder, by_name, layer};
use crate::probe::Probe;
use crate::stores::{Stores, on_each_store};

on_each_store!(what_leads_is_shown_its_lease);

#[tokio::test]
async fn what_flies_is_handled_by_its_caller() {
    for request in ["passes", "ann:1"] {
        let flight = build::<Infallible>(builder(), &tower_distributed::Store::in_memory());
        let handle = service_fn(async |_: String| Ok(tokio::task::id().to_string()));
        let service = SingleFlightLayer::new(flight, by_name).layer(handle);
        let call =
            tokio::spawn(async { (service.oneshot(request.into()).await, tokio::task::id()) });
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
    let told = layer
        .layer(Probe::default())
        .oneshot("ann:1".into())
        .await
        .unwrap();
    assert!(told.starts_with("ann:1/"), "{told}");
    assert_eq!(
        layer
            .layer(Probe::default())
            .oneshot("ann:2".into())
            .await
            .unwrap(),
        told
    );
    becomes_free(&stores, "ann").await;
}

#[tokio::test]
async fn a_panic_of_the_key_is_its_callers_own() {
    let flight = build::<Infallible>(builder(), &tower_distributed::Store::in_memory());
    let by = |request: &String| request.strip_prefix("key:").expect("a key").to_owned();
    let service = SingleFlightLayer::new(flight, by).layer(Probe::default());
    assert!(
        tokio::spawn(service.clone().oneshot("none".into()))
            .await
            .unwrap_err()
            .is_panic()
    );
    let answer: Result<_, BoxError> = service.oneshot("key:1".into()).await;
    assert!(!answer.unwrap_or_default().is_empty());
}
