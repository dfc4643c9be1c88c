//! A response future may be dropped at any time, in any role: another takes over, or the run goes on, and nothing is left behind.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use tokio_test::{assert_pending, task};
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::SingleFlightLayer;
use tower_test::mock;

use crate::flights::{becomes_free, build, builder, by_name, layer};
use crate::probe::Probe;
use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    the_only_one_at_any_time,
    a_leader_at_any_time,
    a_leader_with_a_follower_elsewhere_at_any_time,
    a_follower_at_any_time,
    a_follower_elsewhere_at_any_time,
    who_was_handed_the_lead_without_noticing,
    a_run_that_is_to_go_on,
);

/// So many steps of the runtime are taken before the drop, at most.
const STEPS: usize = 24;
/// For how many polls the inner future is pending.
const YIELDS: usize = 5;

async fn steps(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

async fn nothing_is_left(stores: &Stores, probe: &Probe) {
    eventually("the inner future to be gone", SOON, async || probe.running() == 0).await;
    becomes_free(stores, "ann").await;
}

async fn the_only_one_at_any_time(stores: Stores) {
    for count in 0..STEPS {
        let probe = Probe::yielding(YIELDS);
        let service = layer::<Infallible>(&stores).layer(probe.clone());
        let mut call = task::spawn(service.oneshot("ann:1".into()));
        assert_pending!(call.poll());
        steps(count).await;
        drop(call);
        nothing_is_left(&stores, &probe).await;
        assert!(probe.calls() <= 1);
    }
}

/// One who goes away, and one who stays; which of them comes first, and whether they are in one process.
async fn one_goes_away(stores: Stores, first_goes: bool, together: bool) {
    let mut taken_over = 0;
    for count in 0..STEPS {
        let probe = Probe::yielding(YIELDS);
        let here = layer::<Infallible>(&stores).layer(probe.clone());
        let there = if together { here.clone() } else { layer(&stores).layer(probe.clone()) };
        let mut first = task::spawn(here.oneshot("ann:first".into()));
        assert_pending!(first.poll());
        let mut second = task::spawn(there.oneshot("ann:second".into()));
        assert_pending!(second.poll());
        steps(count).await;
        let answer = if first_goes {
            drop(first);
            tokio::time::timeout(SOON, second).await
        } else {
            drop(second);
            tokio::time::timeout(SOON, first).await
        };
        let answer = answer.expect("an answer").unwrap();
        taken_over += usize::from(first_goes && answer == "ann:second");
        let one_run = probe.calls() == 1;
        assert!(one_run || probe.calls() == 2, "{} runs", probe.calls());
        // In one process the run goes on for whoever is left.
        assert!(!together || one_run && answer == "ann:first", "{answer}");
        nothing_is_left(&stores, &probe).await;
    }
    assert!(!first_goes || together || taken_over > 0);
}

async fn a_leader_at_any_time(stores: Stores) {
    one_goes_away(stores, true, true).await;
}

async fn a_leader_with_a_follower_elsewhere_at_any_time(stores: Stores) {
    one_goes_away(stores, true, false).await;
}

async fn a_follower_at_any_time(stores: Stores) {
    one_goes_away(stores, false, true).await;
}

async fn a_follower_elsewhere_at_any_time(stores: Stores) {
    one_goes_away(stores, false, false).await;
}

async fn who_was_handed_the_lead_without_noticing(stores: Stores) {
    let (inner, mut handle) = mock::pair::<String, String>();
    let inner = inner.map_response(|answer| match &*answer {
        "panic" => panic!("out of order"),
        _ => answer,
    });
    let service = layer(&stores).layer(inner);
    let mut leader = task::spawn(service.clone().oneshot("ann:1".into()));
    assert_pending!(leader.poll());
    let (_, answer) = handle.next_request().await.unwrap();
    let mut others: Vec<_> =
        (2..6).map(|number| task::spawn(service.clone().oneshot(format!("ann:{number}")))).collect();
    for other in &mut others {
        assert_pending!(other.poll());
    }
    answer.send_response("panic".into());
    let panic = AssertUnwindSafe(leader).catch_unwind().await.unwrap_err();
    assert_eq!(*panic.downcast_ref::<&str>().unwrap(), "out of order");
    // The lead is with the first who follows, who is not polled any more; and with the next, who is not either.
    for _ in 0..2 {
        eventually("the lead to be handed on", SOON, async || others[0].is_woken()).await;
        drop(others.remove(0));
    }
    let mut others = others.into_iter();
    let (mut fourth, mut fifth) = (others.next().unwrap(), others.next().unwrap());
    eventually("the lead to be handed on", SOON, async || fourth.is_woken()).await;
    assert_pending!(fourth.poll());
    assert_pending!(fifth.poll());
    let (request, answer) = handle.next_request().await.unwrap();
    assert_eq!(request, "ann:4");
    answer.send_response("hello".into());
    assert_eq!((fourth.await.unwrap(), fifth.await.unwrap()), ("hello".into(), "hello".into()));
}

async fn a_run_that_is_to_go_on(stores: Stores) {
    for count in 0..STEPS {
        let probe = Probe::yielding(YIELDS);
        let flight = build::<Infallible>(builder().go_on(true), &stores.open());
        let service = SingleFlightLayer::new(flight.clone(), by_name).layer(probe.clone());
        let mut call = task::spawn(service.clone().oneshot("ann:1".into()));
        assert_pending!(call.poll());
        steps(count).await;
        drop(call);
        eventually("it to run", SOON, async || probe.calls() == 1).await;
        let there = layer(&stores).layer(Probe::hanging());
        assert_eq!(
            tokio::time::timeout(SOON, there.oneshot("ann:2".into())).await.unwrap().unwrap(),
            "ann:1"
        );
        assert_eq!(probe.calls(), 1);
        flight.forget("ann").await.unwrap();
    }
}
