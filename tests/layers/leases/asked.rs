//! What the layers ask: key, weight and limit, by closures over any type of request.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::fleet::FleetLimit;
use tower_distributed::{
    ConcurrencyLimitLayer, LeaseHandle, Refusal, RefusalKind, Store, WaitGroup,
};

use crate::families::{on_each_layer, permits};
use crate::probe::Probe;
use crate::stores::{SOON, Stores, away, on_each_store};
use support::eventually;

on_each_store!(
    a_limit_counts_beside_that_of_the_fleet,
    what_is_heavier_than_its_limit_is_refused,
    what_has_its_lease_is_shown_it,
);

#[derive(Debug)]
struct Job {
    tenant: Option<&'static str>,
    size: u32,
    fence: Option<u64>,
}

fn job(tenant: &'static str, size: u32) -> Job {
    Job {
        tenant: Some(tenant),
        size,
        fence: None,
    }
}

fn tenant(job: &Job) -> Option<&'static str> {
    job.tenant
}

fn untouched(_: &LeaseHandle, _: &mut Job) {
    panic!("there is no lease");
}

/// How a call that is not to be held back is refused.
macro_rules! refusal {
    ($service:expr, $job:expr) => {{
        let outcome = $service.ready().await.unwrap().call($job).await;
        outcome
            .err()
            .map(|error| error.downcast_ref::<Refusal>().unwrap().kind())
    }};
}

#[test]
fn a_request_whose_weight_panicked_is_not_admitted_by_another_poll() {
    let group = permits(&Store::in_memory(), 1);
    let limit = ConcurrencyLimitLayer::new(group, tenant).weight(|_: &Job| panic!("no weight"));
    let mut service = limit.layer(service_fn(async |job: Job| Ok::<_, Infallible>(job)));
    let mut response = task::spawn(service.call(job("ann", 1)));
    assert!(catch_unwind(AssertUnwindSafe(|| response.poll())).is_err());
    assert_pending!(response.poll());
}

/// A limit that is chosen for a request bounds that request alone. Also if it is that with which the WaitGroup was built.
async fn a_limit_counts_beside_that_of_the_fleet(stores: Stores) {
    let store = stores.open();
    let group = WaitGroup::new(&store, "plans", 10).unwrap();
    let fleet = FleetLimit::new(&store, "plans", 10_u32).unwrap();
    fleet.set(100_u32, "ann").await.unwrap();
    eventually("the limit of the fleet", SOON, async || {
        fleet.current() == 100
    })
    .await;
    let closed = group.with_limit(0).unwrap();
    assert!(
        closed.try_add("k").await.unwrap_err().is_refused(),
        "what is closed stays closed"
    );
    let layer = ConcurrencyLimitLayer::new(group.clone(), |plan: &u32| plan.to_string());
    let mut service = layer
        .limit(|plan: &u32| Some(*plan))
        .layer(Probe::default());
    for plan in [9, 10, 11] {
        for (others, refused) in [(plan - 1, None), (plan, Some(RefusalKind::NoPermit))] {
            let held = group.add_n(plan.to_string(), others).await.unwrap();
            assert_eq!(refusal!(service, plan), refused, "{plan} beside {others}");
            assert!(held.done().await.unwrap());
        }
    }
}

/// It would stop all others until nothing else runs.
async fn what_is_heavier_than_its_limit_is_refused(stores: Stores) {
    let layer =
        ConcurrencyLimitLayer::new(permits(&stores.open(), 50), tenant).limit(|_: &Job| Some(10));
    let mut service = layer.weight(|job: &Job| job.size).layer(Probe::default());
    assert_eq!(
        refusal!(service, job("ann", 20)),
        Some(RefusalKind::ExceedsLimit)
    );
    assert_eq!(refusal!(service, job("ann", 10)), None);
    // What weighs nothing asks nobody.
    let layer =
        ConcurrencyLimitLayer::new(permits(&away(), 1), tenant).weight(|job: &Job| job.size);
    let service = layer.on_lease(untouched).layer(Probe::default());
    assert_eq!(service.oneshot(job("ann", 0)).await.unwrap().size, 0);
}

async fn what_has_its_lease_is_shown_it(stores: Stores) {
    let mut fences = Vec::new();
    on_each_layer!(stores, tenant, |layer| {
        let show = |lease: &LeaseHandle, job: &mut Job| {
            assert!(
                lease.is_held() && lease.key().as_bytes() == b"ann" && !lease.token().is_empty()
            );
            job.fence = lease.fence();
        };
        let mut service = layer.on_lease(show).max_wait(SOON).layer(Probe::default());
        for _ in 0..2 {
            fences.push(
                service
                    .ready()
                    .await
                    .unwrap()
                    .call(job("ann", 1))
                    .await
                    .unwrap()
                    .fence,
            );
        }
    });
    let [
        None,
        None,
        Some(write),
        Some(rewrite),
        Some(lock),
        Some(relock),
    ] = fences[..]
    else {
        panic!("{fences:?}")
    };
    assert!(rewrite > write && relock > lock, "{fences:?}");
}
