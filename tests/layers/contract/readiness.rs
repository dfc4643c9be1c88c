//! Readiness is the inner service's: passed on, kept for the call, carried by no clone.

use std::pin::pin;

use futures::FutureExt as _;
use futures::future::join_all;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{Layered, Refusal};
use tower_test::mock;

use super::subjects::{Refusing, Subject, for_all_subjects, on_subjects};
use crate::flights::kind;
use crate::probe::Probe;
use crate::stores::{SOON, Stores, away};
use support::eventually;

on_subjects!(all:
    the_ready_instance_is_called,
    a_clone_is_not_ready,
    pending_readiness_is_passed_on,
    errors_of_readiness_are_passed_on,
);
on_subjects!(refusing: a_refusal_keeps_nothing_and_is_final);
on_subjects!(waiting: it_is_kept_while_a_request_waits);
on_subjects!([RateLimit SeveralLimits ConcurrencyLimit Mutex RwLock Dedupe Duplicates]:
    a_refusal_uses_up_the_readiness);

async fn the_ready_instance_is_called<T: Subject>(stores: Stores) {
    let probe = Probe::yielding(1);
    let mut service = T::around(&T::layer(&stores.open()), probe.clone());
    let names = ["ann:1", "bob:1", "eve:1", "passes"];
    let mut calls = Vec::new();
    // The calls overlap: each takes the instance that was ready for it, before the next is.
    for name in names {
        calls.push(service.ready().await.unwrap().call(name.to_owned()));
    }
    for (outcome, name) in join_all(calls).await.into_iter().zip(names) {
        assert_eq!(outcome.unwrap(), name);
    }
    assert_eq!((probe.polled_ready(), probe.calls()), (4, 4));
}

async fn a_refusal_uses_up_the_readiness<T: Refusing>(stores: Stores) {
    let occupied = T::occupy(&stores, "ann").await;
    let probe = Probe::default();
    let mut service = T::around(&T::layer(&stores.open()), probe.clone());
    for _ in 0..2 {
        let error = service
            .ready()
            .await
            .unwrap()
            .call("ann:1".into())
            .await
            .unwrap_err();
        assert_eq!(kind(&error), Some(T::REFUSAL), "{error}");
    }
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call("bob:1".into())
            .await
            .unwrap(),
        "bob:1"
    );
    assert_eq!((probe.polled_ready(), probe.calls()), (3, 1));
    T::free(occupied).await;
}

async fn a_refusal_keeps_nothing_and_is_final<T: Refusing>(stores: Stores) {
    let occupied = T::occupy(&stores, "ann").await;
    let probe = Probe::default();
    let limited = tower::limit::ConcurrencyLimit::new(probe.clone(), 1);
    let mut first = T::around(&T::layer(&stores.open()), limited);
    let mut second = first.clone();
    let mut call = pin!(first.ready().await.unwrap().call("ann:1".into()));
    assert!(call.as_mut().await.unwrap_err().is::<Refusal>());
    let ready = second
        .ready()
        .now_or_never()
        .expect("the permit to be free");
    assert_eq!(ready.unwrap().call("bob:1".into()).await.unwrap(), "bob:1");
    T::free(occupied).await;
    assert!(
        call.now_or_never().is_none(),
        "a poll that nobody should make"
    );
    assert_eq!(probe.calls(), 1);
}

async fn it_is_kept_while_a_request_waits<T: Refusing>(stores: Stores) {
    let occupied = T::occupy(&stores, "ann").await;
    let probe = Probe::default();
    let mut service = T::around(&T::waiting(T::layer(&stores.open())), probe.clone());
    let mut call = task::spawn(service.ready().await.unwrap().call("ann:1".into()));
    assert_pending!(call.poll());
    // Others are served meanwhile, each by an instance of its own.
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call("bob:1".into())
            .await
            .unwrap(),
        "bob:1"
    );
    assert_eq!((probe.polled_ready(), probe.calls()), (2, 1));
    T::free(occupied).await;
    assert_eq!(call.await.unwrap(), "ann:1");
    assert_eq!((probe.polled_ready(), probe.calls()), (2, 2));
}

async fn a_clone_is_not_ready<T: Subject>(stores: Stores) {
    let probe = Probe::default();
    let mut service = T::around(&T::layer(&stores.open()), probe.clone());
    service.ready().await.unwrap();
    let mut clone = service.clone();
    assert_eq!(
        clone
            .ready()
            .await
            .unwrap()
            .call("ann:1".into())
            .await
            .unwrap(),
        "ann:1"
    );
    assert_eq!(
        service.call("bob:1".into()).await.unwrap(),
        "bob:1",
        "the original still is"
    );
    assert_eq!(probe.polled_ready(), 2);
}

async fn pending_readiness_is_passed_on<T: Subject>(_: Stores) {
    // In memory, where nothing else is waited for.
    let layer = T::layer(&Stores::in_memory().open());
    let (mut service, mut handle) =
        mock::spawn_with::<String, String, _, _>(|inner| T::around(&layer, inner));
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

async fn errors_of_readiness_are_passed_on<T: Subject>(stores: Stores) {
    let layer = T::layer(&stores.open());
    let (mut service, mut handle) =
        mock::spawn_with::<String, String, _, _>(|inner| T::around(&layer, inner));
    handle.send_error("out of order");
    let error = assert_ready_err!(service.poll_ready());
    assert!(
        !error.is::<Refusal>() && error.to_string() == "out of order",
        "{error}"
    );
}

#[test]
fn poll_ready_does_no_io_and_needs_no_runtime() {
    fn check<T: Subject>() {
        let mut service = task::spawn(T::around(&T::layer(&away()), Probe::default()));
        assert_ready_ok!(service.enter(|context, mut service| service.poll_ready(context)));
    }
    for_all_subjects!(check);
}

#[test]
fn the_inner_service_can_be_reached() {
    fn check<T: Subject>() {
        let layer = T::layer(&Stores::in_memory().open());
        let mut service: Layered<String, _> = layer.layer(String::from("inner"));
        assert_eq!(service.get_ref(), "inner");
        service.get_mut().push_str(", changed");
        assert_eq!(service.into_inner(), "inner, changed");
    }
    for_all_subjects!(check);
}
