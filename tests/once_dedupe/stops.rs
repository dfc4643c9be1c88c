//! Processes that stand still while they handle an item.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tower::BoxError;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::dedupe::Claimed;
use tower_distributed::{Dedupe, DedupeLayer, Store};

use crate::fleet::{Fleet, LONG, filter, store_of_role};
use crate::referee::Referee;
use support::eventually;
use support::processes::{setting, tell};
use support::role;

const STOPS: usize = 10;
const TTL: Duration = Duration::from_millis(500);

fn dedupe(store: &Store, ttl: Duration) -> Dedupe {
    Dedupe::builder().remember_forever().ttl(ttl).build(&filter(store)).unwrap()
}

// Handles the item of its name, until it is told to go on.
role!(role_handler, async {
    let layer = DedupeLayer::new(dedupe(&store_of_role(), TTL), |item: &String| item.clone());
    let layer = layer.on_unsure(|unsure| {
        assert_eq!(unsure.key, setting("NAME").into());
        tell(if unsure.error.is_none() { "it was lost" } else { "not confirmed" });
    });
    let service = ServiceBuilder::new().layer(layer).service(service_fn(async |item: String| {
        let referee = Referee::of_role().await;
        tell("handling");
        referee.next_order(&item).await;
        Ok::<_, BoxError>(())
    }));
    service.oneshot(setting("NAME")).await.unwrap();
    tell("handled");
});

/// Stops it for two times to live at least, in which another handles its item.
async fn stop(fleet: &Fleet, number: usize) {
    let item = format!("item{number}");
    let mut handler = fleet.spawn("stops::role_handler", &item);
    assert_eq!(handler.next_line().await, "handling");
    handler.pause();
    let stopped = Instant::now();
    let dedupe = dedupe(&fleet.store(), LONG);
    let Claimed::New(claim) = dedupe.claim(&item, LONG).await.unwrap() else {
        panic!("nobody has handled it")
    };
    assert!(claim.confirm().await.unwrap());
    eventually("two times to live to be over", LONG, async || stopped.elapsed() > TTL * 2).await;
    handler.resume();
    fleet.referee.order(&item, "go on").await;
    assert_eq!(handler.next_line().await, "it was lost");
    assert_eq!(handler.next_line().await, "handled");
    assert!(matches!(dedupe.try_claim(&item).await.unwrap(), Claimed::Duplicate));
}

#[tokio::test]
async fn what_a_stopped_process_handles_another_handles_and_both_know() {
    let fleet = &Fleet::start().await;
    join_all((0..STOPS).map(|number| stop(fleet, number))).await;
}
