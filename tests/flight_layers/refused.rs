//! Who does not share: refused, or in turn; and what happens while the store is away.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};
use tower_distributed::single_flight::Followers;
use tower_distributed::{LeaseHandle, Refusal, RefusalKind, SingleFlightLayer, Store};

use crate::flights::{Named, build, builder, by_name, kind, moody};
use crate::probe::Probe;
use crate::stores::{SOON, Stores, away, on_each_store};
use crate::support::eventually;
use crate::support::redis_server::RedisServer;

on_each_store!(
    who_is_to_be_skipped_is_refused_at_once,
    a_response_and_the_service_still_cannot_fail,
    in_turn_each_is_handled,
    whose_turn_does_not_come_is_refused,
    errors_in_turn_are_the_callers_own,
);

fn set<E: Send + Sync + 'static>(followers: Followers, stores: &Stores) -> Named<E> {
    SingleFlightLayer::new(build(builder().followers(followers), &stores.open()), by_name)
}

async fn who_is_to_be_skipped_is_refused_at_once(stores: Stores) {
    let probe = Probe::hanging();
    let (here, there) = (
        set::<Infallible>(Followers::Skip, &stores).layer(probe.clone()),
        set::<Infallible>(Followers::Skip, &stores).layer(probe.clone()),
    );
    let mut first = task::spawn(here.clone().oneshot("ann:1".into()));
    eventually("it to run", SOON, async || {
        assert_pending!(first.poll());
        probe.running() == 1
    })
    .await;
    for service in [&here, &there] {
        let error = service.clone().oneshot("ann:2".into()).await.unwrap_err();
        let refusal = error.downcast_ref::<Refusal>().unwrap();
        assert_eq!(refusal.kind(), RefusalKind::InFlight);
        assert!(refusal.get_ref().is_refused() && refusal.retry_after().is_some());
    }
    assert_eq!(probe.calls(), 1);
    drop(first);
    assert_eq!(probe.running(), 0);
    let free = set::<Infallible>(Followers::Skip, &stores).layer(Probe::default());
    eventually("it to be free", SOON, async || free.clone().oneshot("ann:3".into()).await.is_ok()).await;
    assert_eq!(free.oneshot("ann:4".into()).await.unwrap(), "ann:4", "nothing is kept");
}

async fn a_response_and_the_service_still_cannot_fail(stores: Stores) {
    let held = build::<Infallible>(builder().followers(Followers::Skip), &stores.open());
    let mut holding = task::spawn(held.run("ann", std::future::pending));
    let layer = set::<Infallible>(Followers::Skip, &stores);
    let service = layer.reject_with(|_: Refusal| "come back later".to_owned()).layer(Probe::default());
    eventually("it to be held", SOON, async || {
        assert_pending!(holding.poll());
        let outcome: Result<String, Infallible> = service.clone().oneshot("ann:1".into()).await;
        outcome.unwrap() == "come back later"
    })
    .await;
    assert_eq!(service.oneshot("bob:1".into()).await.unwrap(), "bob:1");
}

async fn in_turn_each_is_handled(stores: Stores) {
    let (at_work, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let inner = {
        let (at_work, most) = (Arc::clone(&at_work), Arc::clone(&most));
        service_fn(move |request: String| {
            let (at_work, most) = (Arc::clone(&at_work), Arc::clone(&most));
            async move {
                most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
                at_work.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Infallible>(request)
            }
        })
    };
    let (here, there) = (
        set(Followers::TakeTurns, &stores).layer(inner.clone()),
        set(Followers::TakeTurns, &stores).layer(inner),
    );
    let calls = (0..20).map(|number| {
        let service = if number % 2 == 0 { &here } else { &there };
        service.clone().oneshot(format!("ann:{number}"))
    });
    for (number, outcome) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(outcome.unwrap(), format!("ann:{number}"));
    }
    assert_eq!((at_work.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (0, 1));
}

async fn whose_turn_does_not_come_is_refused(stores: Stores) {
    let probe = Probe::hanging();
    let service = || {
        let set = builder().followers(Followers::TakeTurns).longest_wait(Duration::from_millis(30));
        SingleFlightLayer::new(build::<Infallible>(set, &stores.open()), by_name).layer(probe.clone())
    };
    let (here, there) = (service(), service());
    let mut first = task::spawn(here.clone().oneshot("ann:1".into()));
    eventually("it to run", SOON, async || {
        assert_pending!(first.poll());
        probe.running() == 1
    })
    .await;
    for service in [&here, &there] {
        let error = service.clone().oneshot("ann:2".into()).await.unwrap_err();
        assert_eq!(kind(&error), Some(RefusalKind::WaitedTooLong));
    }
    assert_eq!(probe.calls(), 1);
}

async fn errors_in_turn_are_the_callers_own(stores: Stores) {
    for followers in [Followers::TakeTurns, Followers::Skip] {
        let probe = Probe::default();
        let service = set(followers, &stores).layer(moody(&probe));
        for request in ["ann:1!", "ann:2!"] {
            eventually("its turn", SOON, async || {
                let error: BoxError = service.clone().oneshot(request.into()).await.unwrap_err();
                error.to_string() == request
            })
            .await;
        }
    }
}

#[tokio::test]
async fn an_outage_refuses_whatever_the_others_do() {
    for followers in [Followers::Share, Followers::TakeTurns, Followers::Skip] {
        let flight = build::<Infallible>(builder().followers(followers).alone_when_away(false), &away());
        let probe = Probe::default();
        let service = SingleFlightLayer::new(flight, by_name).layer(probe.clone());
        let calls = (0..6).map(|number| service.clone().oneshot(format!("ann:{number}")));
        for outcome in join_all(calls).await {
            let error = outcome.unwrap_err();
            let refusal = error.downcast_ref::<Refusal>().unwrap();
            assert_eq!((refusal.kind(), refusal.retry_after()), (RefusalKind::StoreUnavailable, None));
            assert!(std::error::Error::source(refusal).is_some(), "{refusal:?}");
        }
        assert_eq!(probe.calls(), 0);
    }
}

#[tokio::test]
async fn alone_it_is_shared_within_the_process() {
    for (followers, calls) in [(Followers::Share, 1), (Followers::TakeTurns, 6), (Followers::Skip, 6)] {
        let builder = builder().followers(followers);
        // Who shares does so unless told otherwise.
        let builder = if followers == Followers::Share { builder } else { builder.alone_when_away(true) };
        let flight = build::<Infallible>(builder, &away());
        let probe = Probe::yielding(2);
        let service = SingleFlightLayer::new(flight, by_name)
            .on_lease(|_: &LeaseHandle, _: &mut String| panic!("there is no lease"))
            .layer(probe.clone());
        let all = (0..6).map(|number| service.clone().oneshot(format!("ann:{number}")));
        for outcome in join_all(all).await {
            assert!(outcome.unwrap().starts_with("ann:"));
        }
        assert_eq!(probe.calls(), calls, "{followers:?}");
    }
}

/// Whoever is at work when the store goes away is not concerned, and those of its process get its answer.
#[tokio::test]
async fn requests_at_work_survive_an_outage() {
    let redis = RedisServer::start().await;
    let flight = build(builder().alone_when_away(false), &Store::redis(&redis.url()).unwrap());
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
    let error = service.clone().oneshot("ann:3".into()).await.unwrap_err();
    assert_eq!(kind(&error), Some(RefusalKind::StoreUnavailable));
    redis.restart().await;
    eventually("the store to be back", SOON, async || {
        let again = tokio::spawn(service.clone().oneshot("ann:4".into()));
        tokio::select! {
            Some((_, answer)) = handle.next_request() => answer.send_response("again".into()),
            () = async { while !again.is_finished() { tokio::task::yield_now().await } } => {}
        }
        again.await.unwrap().is_ok_and(|text| text == "again")
    })
    .await;
}
