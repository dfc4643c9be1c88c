//! Readiness is the inner service's: passed on, kept for the call, carried by no clone.

use std::pin::pin;

use futures::FutureExt as _;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::Refusal;
use tower_test::mock;

use crate::leases::layers::{Other, by_name, on_each_layer};
use crate::probe::Probe;
use crate::stores::{HOUR, Stores, away, on_each_store};

on_each_store!(
    the_ready_instance_is_called,
    a_refusal_uses_up_the_readiness,
    a_refusal_keeps_nothing_and_is_final,
    it_is_kept_while_a_request_waits
);

async fn the_ready_instance_is_called(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let probe = Probe::yielding(1);
        let mut service = layer.layer(probe.clone());
        let mut calls = Vec::new();
        // The calls overlap: each takes the instance that was ready for it, before the next is.
        for name in ["ann", "bob", "eve"] {
            calls.push(service.ready().await.unwrap().call(name));
        }
        for (outcome, name) in futures::future::join_all(calls).await.into_iter().zip(["ann", "bob", "eve"]) {
            assert_eq!(outcome.unwrap(), name);
        }
        assert_eq!((probe.polled_ready(), probe.calls()), (3, 3));
    });
}

async fn a_refusal_uses_up_the_readiness(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    on_each_layer!(stores, by_name, |layer| {
        let probe = Probe::default();
        let mut service = layer.layer(probe.clone());
        for _ in 0..2 {
            assert!(service.ready().await.unwrap().call("ann").await.unwrap_err().is::<Refusal>());
        }
        assert_eq!(service.ready().await.unwrap().call("bob").await.unwrap(), "bob");
        assert_eq!((probe.polled_ready(), probe.calls()), (3, 1));
    });
    other.leaves().await;
}

async fn a_refusal_keeps_nothing_and_is_final(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    on_each_layer!(stores, by_name, |layer| {
        let probe = Probe::default();
        let mut first = layer.layer(tower::limit::ConcurrencyLimit::new(probe.clone(), 1));
        let mut second = first.clone();
        let mut call = pin!(first.ready().await.unwrap().call("ann"));
        assert!(call.as_mut().await.unwrap_err().is::<Refusal>());
        let ready = second.ready().now_or_never().expect("the permit to be free");
        assert_eq!(ready.unwrap().call("bob").await.unwrap(), "bob");
        assert!(call.now_or_never().is_none(), "a poll that nobody should make");
        assert_eq!(probe.calls(), 1);
    });
    other.leaves().await;
}

async fn it_is_kept_while_a_request_waits(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let mut waiting = Vec::new();
    on_each_layer!(stores, by_name, |layer| {
        let probe = Probe::default();
        let mut service = layer.max_wait(HOUR).layer(probe.clone());
        let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
        assert_pending!(call.poll());
        // Others are served meanwhile, each by an instance of its own.
        assert_eq!(service.ready().await.unwrap().call("bob").await.unwrap(), "bob");
        assert_eq!((probe.polled_ready(), probe.calls()), (2, 1));
        waiting.push(tokio::spawn(async move {
            assert_eq!(call.await.unwrap(), "ann");
            assert_eq!((probe.polled_ready(), probe.calls()), (2, 2));
        }));
    });
    other.leaves().await;
    for call in waiting {
        call.await.unwrap();
    }
}

#[test]
fn poll_ready_does_no_io_and_needs_no_runtime() {
    struct Away;
    impl Away {
        fn open(&self) -> tower_distributed::Store {
            away()
        }
    }
    on_each_layer!(Away, by_name, |layer| {
        let mut service = task::spawn(layer.layer(Probe::default()));
        assert_ready_ok!(service.enter(|context, mut service| {
            tower::Service::<&'static str>::poll_ready(&mut *service, context)
        }));
    });
}

#[tokio::test]
async fn a_clone_is_not_ready() {
    on_each_layer!(Stores::in_memory(), by_name, |layer| {
        let probe = Probe::default();
        let mut service = layer.layer(probe.clone());
        service.ready().await.unwrap();
        let mut clone = service.clone();
        assert_eq!(clone.ready().await.unwrap().call("ann").await.unwrap(), "ann");
        assert_eq!(service.call("ann").await.unwrap(), "ann", "the original still is");
        assert_eq!(probe.polled_ready(), 2);
    });
}

#[tokio::test]
#[should_panic(expected = "called without having been polled ready")]
async fn the_probe_notices_a_clone_that_is_called_unready() {
    on_each_layer!(Stores::in_memory(), by_name, |layer| {
        let mut service = layer.layer(Probe::default());
        service.ready().await.unwrap();
        let _ = service.clone().call("ann").await;
    });
}

#[tokio::test]
async fn pending_readiness_is_passed_on() {
    on_each_layer!(Stores::in_memory(), by_name, |layer| {
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
    });
}

#[tokio::test]
async fn errors_of_readiness_are_passed_on() {
    on_each_layer!(Stores::in_memory(), by_name, |layer| {
        let (mut service, mut handle) = mock::spawn_layer::<&'static str, &'static str, _>(layer);
        handle.send_error("out of order");
        let error = assert_ready_err!(service.poll_ready());
        assert!(!error.is::<Refusal>() && error.to_string() == "out of order", "{error}");
    });
}

#[test]
fn the_inner_service_can_be_reached() {
    on_each_layer!(Stores::in_memory(), by_name, |layer| {
        let mut service = layer.layer(String::from("inner"));
        assert_eq!(service.get_ref(), "inner");
        service.get_mut().push_str(", changed");
        assert_eq!(service.into_inner(), "inner, changed");
    });
}
