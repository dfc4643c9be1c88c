//! Readiness is the inner service's: passed on, kept for the call, carried by no clone.

use std::convert::Infallible;

use futures::FutureExt as _;
use futures::future::join_all;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{BoxError, Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{Refusal, SingleFlightLayer, Store};
use tower_test::mock;

use crate::probe::Probe;
use crate::single_flight::flights::{becomes_free, build, builder, by_name, layer, moody};
use crate::stores::{SOON, Stores, away, on_each_store};
use crate::support::eventually;

on_each_store!(
    the_ready_instance_is_called,
    a_follower_never_calls_its_own,
    each_who_runs_calls_its_own,
    it_is_kept_while_a_request_follows,
    who_is_answered_from_elsewhere_calls_none,
);

async fn the_ready_instance_is_called(stores: Stores) {
    let probe = Probe::yielding(1);
    let mut service = layer(&stores).layer(probe.clone());
    let mut calls = Vec::new();
    // The calls overlap: each takes the instance that was ready for it, before the next is.
    for name in ["ann:1", "bob:1", "eve:1", "passes"] {
        calls.push(service.ready().await.unwrap().call(name.to_owned()));
    }
    for (outcome, name) in join_all(calls).await.into_iter().zip(["ann:1", "bob:1", "eve:1", "passes"]) {
        assert_eq!(outcome.unwrap(), name);
    }
    assert_eq!((probe.polled_ready(), probe.calls()), (4, 4));
}

async fn a_follower_never_calls_its_own(stores: Stores) {
    let probe = Probe::yielding(3);
    let mut service = layer(&stores).layer(probe.clone());
    let mut calls = Vec::new();
    for number in 0..9 {
        calls.push(service.ready().await.unwrap().call(format!("ann:{number}")));
    }
    for outcome in join_all(calls).await {
        assert_eq!(outcome.unwrap(), "ann:0");
    }
    assert_eq!((probe.polled_ready(), probe.calls()), (9, 1));
    assert_eq!(service.ready().await.unwrap().call("ann:9".into()).await.unwrap(), "ann:0");
    assert_eq!((probe.polled_ready(), probe.calls()), (10, 1), "an answer that is there");
}

#[tokio::test]
async fn who_is_answered_from_the_cache_keeps_nothing_that_others_wait_for() {
    let flight = build::<Infallible>(builder().local_cache(1 << 20), &Store::in_memory());
    let limited = tower::limit::ConcurrencyLimit::new(Probe::default(), 1);
    let mut first = SingleFlightLayer::new(flight, by_name).layer(limited);
    let mut second = first.clone();
    for _ in 0..2 {
        assert_eq!(first.ready().await.unwrap().call("ann:1".to_owned()).await.unwrap(), "ann:1");
    }
    let ready = second.ready().now_or_never().expect("the permit to be free");
    assert_eq!(ready.unwrap().call("ann:1".to_owned()).await.unwrap(), "ann:1");
}

async fn each_who_runs_calls_its_own(stores: Stores) {
    let probe = Probe::yielding(3);
    let mut service = layer(&stores).layer(moody(&probe));
    let mut calls = Vec::new();
    for request in ["ann:1!", "ann:2!", "ann:3", "ann:4"] {
        calls.push(service.ready().await.unwrap().call(request.to_owned()));
    }
    let told = |outcome: Result<String, BoxError>| outcome.unwrap_or_else(|error| error.to_string());
    let outcomes: Vec<_> = join_all(calls).await.into_iter().map(told).collect();
    assert_eq!(outcomes, ["ann:1!", "ann:2!", "ann:3", "ann:4"]);
    assert_eq!((probe.polled_ready(), probe.calls()), (4, 4));
}

async fn it_is_kept_while_a_request_follows(stores: Stores) {
    let probe = Probe::hanging();
    let elsewhere = layer::<Infallible>(&stores).layer(probe.clone());
    let mut service = layer::<Infallible>(&stores).layer(probe.clone());
    let mut leader = task::spawn(elsewhere.oneshot("ann:1".into()));
    eventually("it to run", SOON, async || {
        assert_pending!(leader.poll());
        probe.running() == 1
    })
    .await;
    let mut follower = task::spawn(service.ready().await.unwrap().call("ann:2".into()));
    assert_pending!(follower.poll());
    // Others are served meanwhile, each by an instance of its own.
    let mut other = task::spawn(service.ready().await.unwrap().call("bob:1".into()));
    eventually("the other to run", SOON, async || {
        assert_pending!(other.poll());
        probe.running() == 2
    })
    .await;
    drop(leader);
    eventually("the follower to take over", SOON, async || {
        assert_pending!(follower.poll());
        probe.calls() == 3 && probe.running() == 2
    })
    .await;
    assert_eq!(probe.polled_ready(), 3);
    drop((follower, other));
    eventually("all to be dropped", SOON, async || probe.running() == 0).await;
    becomes_free(&stores, "ann").await;
}

async fn who_is_answered_from_elsewhere_calls_none(stores: Stores) {
    let probe = Probe::default();
    assert_eq!(layer(&stores).layer(probe.clone()).oneshot("ann:1".into()).await.unwrap(), "ann:1");
    let mut there = layer(&stores).layer(probe.clone());
    assert_eq!(there.ready().await.unwrap().call("ann:2".into()).await.unwrap(), "ann:1");
    assert_eq!((probe.polled_ready(), probe.calls()), (2, 1));
}

#[test]
fn poll_ready_does_no_io_and_needs_no_runtime() {
    let layer = SingleFlightLayer::new(build::<Infallible>(builder(), &away()), by_name);
    let mut service = task::spawn(layer.layer(Probe::default()));
    assert_ready_ok!(
        service.enter(|context, mut service| tower::Service::<String>::poll_ready(&mut *service, context))
    );
}

#[tokio::test]
async fn a_clone_is_not_ready() {
    let probe = Probe::default();
    let mut service = layer(&Stores::in_memory()).layer(probe.clone());
    service.ready().await.unwrap();
    let mut clone = service.clone();
    assert_eq!(clone.ready().await.unwrap().call("bob:1".into()).await.unwrap(), "bob:1");
    assert_eq!(service.call("ann:1".into()).await.unwrap(), "ann:1", "the original still is");
    assert_eq!(probe.polled_ready(), 2);
}

#[tokio::test]
#[should_panic(expected = "called without having been polled ready")]
async fn the_probe_notices_a_clone_that_is_called_unready() {
    let mut service = layer(&Stores::in_memory()).layer(Probe::default());
    service.ready().await.unwrap();
    let _ = service.clone().call("ann:1".into()).await;
}

#[tokio::test]
async fn pending_readiness_is_passed_on() {
    let (mut service, mut handle) = mock::spawn_layer::<String, String, _>(layer(&Stores::in_memory()));
    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
    let mut call = task::spawn(service.call("ann:1".into()));
    assert_pending!(call.poll());
    let (_, answer) = handle.next_request().await.unwrap();
    assert_pending!(service.poll_ready(), "the one readiness is taken");
    answer.send_response("hello".into());
    eventually("the answer", SOON, async || call.is_woken()).await;
    assert_eq!(assert_ready!(call.poll()).unwrap(), "hello");
}

#[tokio::test]
async fn errors_of_readiness_are_passed_on() {
    let (mut service, mut handle) = mock::spawn_layer::<String, String, _>(layer(&Stores::in_memory()));
    handle.send_error("out of order");
    let error = assert_ready_err!(service.poll_ready());
    assert!(!error.is::<Refusal>() && error.to_string() == "out of order", "{error}");
}

#[test]
fn the_inner_service_can_be_reached() {
    let mut service = layer::<Infallible>(&Stores::in_memory()).layer(String::from("inner"));
    assert_eq!(service.get_ref(), "inner");
    service.get_mut().push_str(", changed");
    assert_eq!(service.into_inner(), "inner, changed");
}
