//! A limit that is chosen for a request bounds that request, and no other.

use std::convert::Infallible;

use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::wait_group::FleetLimit;
use tower_distributed::{ConcurrencyLimitLayer, Refusal, RefusalKind, Store, WaitGroup};

use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(it_counts_beside_that_of_the_fleet, what_is_heavier_is_refused, what_is_closed_stays_closed,);

/// Each request is one of a plan, and has a weight.
type Plan = (u32, u32);

/// Also if it is that with which the WaitGroup was built.
async fn it_counts_beside_that_of_the_fleet(stores: Stores) {
    let store = stores.open();
    let group = WaitGroup::new(&store, "plans", 10).unwrap();
    let fleet = FleetLimit::new(&store, "plans", 10_u32).unwrap();
    fleet.set(100_u32, "ann").await.unwrap();
    let layer = ConcurrencyLimitLayer::new(group, |plan: &Plan| plan.0.to_string());
    let layer = layer.limit(|plan: &Plan| Some(plan.0));
    for plan in [9, 10, 11] {
        let handler = service_fn(async |_: Plan| std::future::pending::<Result<(), Infallible>>().await);
        let mut service = layer.layer(handler);
        let mut running = Vec::new();
        for _ in 0..plan {
            let mut request = Box::pin(service.ready().await.unwrap().call((plan, 1)));
            eventually("a permit", SOON, async || {
                assert!(futures::poll!(request.as_mut()).is_pending());
                fleet.current() == 100 && layer_holds(&store, plan).await > running.len()
            })
            .await;
            running.push(request);
        }
        let refused = service.oneshot((plan, 1)).await.unwrap_err();
        assert_eq!(refused.downcast_ref::<Refusal>().unwrap().kind(), RefusalKind::NoPermit, "{plan}");
    }
}

async fn layer_holds(store: &Store, plan: u32) -> usize {
    WaitGroup::new(store, "plans", 10).unwrap().count(plan.to_string()).await.unwrap() as usize
}

/// It would stop all others until nothing else runs.
async fn what_is_heavier_is_refused(stores: Stores) {
    let group = WaitGroup::new(&stores.open(), "heavy", 50).unwrap();
    let layer = ConcurrencyLimitLayer::new(group, |_: &Plan| "all").weight(|plan: &Plan| plan.1);
    let layer = layer.limit(|plan: &Plan| Some(plan.0));
    let service = layer.layer(service_fn(async |_: Plan| Ok::<_, Infallible>(())));
    let refused = service.clone().oneshot((10, 20)).await.unwrap_err();
    assert_eq!(refused.downcast_ref::<Refusal>().unwrap().kind(), RefusalKind::ExceedsLimit);
    service.oneshot((10, 10)).await.unwrap();
}

async fn what_is_closed_stays_closed(stores: Stores) {
    let store = stores.open();
    let closed = WaitGroup::new(&store, "closed", 10).unwrap().with_limit(0).unwrap();
    let fleet = FleetLimit::new(&store, "closed", 10_u32).unwrap();
    fleet.set(100_u32, "ann").await.unwrap();
    assert!(closed.try_add("k").await.unwrap_err().is_refused());
}
