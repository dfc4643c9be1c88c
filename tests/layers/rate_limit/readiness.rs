//! Readiness is the inner service's: passed on, kept for the call, carried by no clone.

use std::pin::pin;

use futures::FutureExt as _;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{RateLimitLayer, Refusal, Store};
use tower_test::mock;

use crate::probe::Probe;
use crate::stores::{Stores, at_most, away, on_each_store};

on_each_store!(
    the_ready_instance_is_called,
    a_refusal_uses_up_the_readiness,
    a_refusal_keeps_nothing_that_others_wait_for,
);

fn by_name(name: &&'static str) -> &'static str {
    name
}

async fn the_ready_instance_is_called(stores: Stores) {
    let probe = Probe::yielding(1);
    let mut service = RateLimitLayer::new(at_most(9, &stores.open()), by_name).layer(probe.clone());
    let mut calls = Vec::new();
    // The calls overlap: each takes the instance that was ready for it, before the next is.
    for _ in 0..3 {
        calls.push(service.ready().await.unwrap().call("ann"));
    }
    for outcome in futures::future::join_all(calls).await {
        assert_eq!(outcome.unwrap(), "ann");
    }
    assert_eq!((probe.polled_ready(), probe.calls()), (3, 3));
}

async fn a_refusal_uses_up_the_readiness(stores: Stores) {
    let probe = Probe::default();
    let mut service = RateLimitLayer::new(at_most(1, &stores.open()), by_name).layer(probe.clone());
    for admitted in [true, false, false] {
        assert_eq!(service.ready().await.unwrap().call("ann").await.is_ok(), admitted);
    }
    assert_eq!(service.ready().await.unwrap().call("bob").await.unwrap(), "bob");
    assert_eq!((probe.polled_ready(), probe.calls()), (4, 2));
}

async fn a_refusal_keeps_nothing_that_others_wait_for(stores: Stores) {
    let limited = tower::limit::ConcurrencyLimit::new(Probe::default(), 1);
    let mut first = RateLimitLayer::new(at_most(1, &stores.open()), by_name).layer(limited);
    let mut second = first.clone();
    assert_eq!(first.ready().await.unwrap().call("ann").await.unwrap(), "ann");
    let mut refused = pin!(first.ready().await.unwrap().call("ann"));
    assert!(refused.as_mut().await.unwrap_err().is::<Refusal>());
    let ready = second.ready().now_or_never().expect("the permit to be free");
    assert_eq!(ready.unwrap().call("bob").await.unwrap(), "bob");
}

#[test]
fn poll_ready_does_no_io_and_needs_no_runtime() {
    let layer = RateLimitLayer::new(at_most(1, &away()), by_name);
    let mut service = task::spawn(layer.layer(Probe::default()));
    assert_ready_ok!(service.enter(|context, mut service| service.poll_ready(context)));
}

#[tokio::test]
async fn a_clone_is_not_ready() {
    let probe = Probe::default();
    let layer = RateLimitLayer::new(at_most(9, &Store::in_memory()), by_name);
    let mut service = layer.layer(probe.clone());
    service.ready().await.unwrap();
    let mut clone = service.clone();
    assert_eq!(clone.ready().await.unwrap().call("ann").await.unwrap(), "ann");
    assert_eq!(service.call("ann").await.unwrap(), "ann", "the original still is");
    assert_eq!(probe.polled_ready(), 2);
}

#[tokio::test]
#[should_panic(expected = "called without having been polled ready")]
async fn the_probe_notices_a_clone_that_is_called_unready() {
    let layer = RateLimitLayer::new(at_most(9, &Store::in_memory()), by_name);
    let mut service = layer.layer(Probe::default());
    service.ready().await.unwrap();
    let _ = service.clone().call("ann").await;
}

#[tokio::test]
async fn pending_readiness_is_passed_on() {
    let layer = RateLimitLayer::new(at_most(9, &Store::in_memory()), by_name);
    let (mut service, mut handle) = mock::spawn_layer::<&'static str, &'static str, _>(layer);
    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
    let mut call = task::spawn(service.call("ann"));
    assert_pending!(call.poll());
    assert_pending!(service.poll_ready(), "the one readiness is taken");
    handle.next_request().await.unwrap().1.send_response("hello");
    assert_eq!(assert_ready!(call.poll()).unwrap(), "hello");
}

#[tokio::test]
async fn errors_of_readiness_are_passed_on() {
    let layer = RateLimitLayer::new(at_most(9, &Store::in_memory()), by_name);
    let (mut service, mut handle) = mock::spawn_layer::<&'static str, &'static str, _>(layer);
    handle.send_error("out of order");
    let error = assert_ready_err!(service.poll_ready());
    assert!(!error.is::<Refusal>() && error.to_string() == "out of order", "{error}");
}
