//! A response future may be dropped at any time: nothing is left behind, and a run that is to go on goes on.

use std::convert::Infallible;

use tokio_test::{assert_pending, task};
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::SingleFlightLayer;

use crate::flights::{becomes_free, build, builder, by_name, layer};
use crate::probe::Probe;
use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(the_only_one_at_any_time, a_run_that_is_to_go_on);

/// So many steps of the runtime are taken before the drop, at most.
const STEPS: usize = 24;
/// For how many polls the inner future is pending.
const YIELDS: usize = 5;

async fn steps(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

async fn the_only_one_at_any_time(stores: Stores) {
    for count in 0..STEPS {
        let probe = Probe::yielding(YIELDS);
        let service = layer::<Infallible>(&stores).layer(probe.clone());
        let mut call = task::spawn(service.oneshot("ann:1".into()));
        assert_pending!(call.poll());
        steps(count).await;
        drop(call);
        eventually("the inner future to be gone", SOON, async || probe.running() == 0).await;
        becomes_free(&stores, "ann").await;
        assert!(probe.calls() <= 1);
    }
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
