//! Whose inner service is called, and for how long its readiness is kept.

use std::convert::Infallible;

use futures::FutureExt as _;
use futures::future::join_all;
use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{SingleFlightLayer, Store};

use crate::flights::{becomes_free, build, builder, by_name, layer};
use crate::probe::Probe;
use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    a_follower_never_calls_its_own,
    it_is_kept_while_a_request_follows,
);

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
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call("ann:9".into())
            .await
            .unwrap(),
        "ann:0"
    );
    assert_eq!(
        (probe.polled_ready(), probe.calls()),
        (10, 1),
        "an answer that is there"
    );
    let mut there = layer(&stores).layer(probe.clone());
    assert_eq!(
        there
            .ready()
            .await
            .unwrap()
            .call("ann:10".into())
            .await
            .unwrap(),
        "ann:0"
    );
    assert_eq!(
        (probe.polled_ready(), probe.calls()),
        (11, 1),
        "an answer of another process"
    );
}

#[tokio::test]
async fn who_is_answered_from_the_cache_keeps_nothing_that_others_wait_for() {
    let flight = build::<Infallible>(builder().local_cache(1 << 20), &Store::in_memory());
    let limited = tower::limit::ConcurrencyLimit::new(Probe::default(), 1);
    let mut first = SingleFlightLayer::new(flight, by_name).layer(limited);
    let mut second = first.clone();
    for _ in 0..2 {
        assert_eq!(
            first
                .ready()
                .await
                .unwrap()
                .call("ann:1".to_owned())
                .await
                .unwrap(),
            "ann:1"
        );
    }
    let ready = second
        .ready()
        .now_or_never()
        .expect("the permit to be free");
    assert_eq!(
        ready.unwrap().call("ann:1".to_owned()).await.unwrap(),
        "ann:1"
    );
}

async fn it_is_kept_while_a_request_follows(stores: Stores) {
    let probe = Probe::hanging();
    let elsewhere = layer::<Infallible>(&stores).layer(probe.clone());
    let mut service = layer::<Infallible>(&stores).layer(probe.clone());
    let mut leader = task::spawn(elsewhere.oneshot("ann:1".into()));
    probe.runs(1, &mut leader).await;
    let mut follower = task::spawn(service.ready().await.unwrap().call("ann:2".into()));
    assert_pending!(follower.poll());
    // Others are served meanwhile, each by an instance of its own.
    let mut other = task::spawn(service.ready().await.unwrap().call("bob:1".into()));
    probe.runs(2, &mut other).await;
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
