//! Requests that wait for a permit in another order than that of arrival: by tenant and by class.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use tokio::task::JoinHandle;
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::wait_group::Turn;
use tower_distributed::{ConcurrencyLimitLayer, WaitGroup};

use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(tenants_have_their_turns, classes_go_first, a_turn_says_all);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Job {
    tenant: &'static str,
    class: u8,
}

/// Lets requests wait one behind the other, frees the only permit, and returns the order in which they were handled.
async fn order(
    group: WaitGroup,
    layer: impl FnOnce(ConcurrencyLimitLayer<Job>) -> ConcurrencyLimitLayer<Job>,
    jobs: &[Job],
) -> Vec<Job> {
    let handled = Arc::new(Mutex::new(Vec::new()));
    let note = {
        let handled = Arc::clone(&handled);
        move |job: Job| {
            handled.lock().unwrap().push(job);
            async { Ok::<_, Infallible>(()) }
        }
    };
    let layer = layer(ConcurrencyLimitLayer::new(group.clone(), |_: &Job| "all").max_wait(SOON));
    let service = layer.layer(service_fn(note));
    let holder = group.add("all").await.unwrap();
    let mut calls: Vec<JoinHandle<()>> = Vec::new();
    for job in jobs {
        let (mut service, job) = (service.clone(), *job);
        calls.push(tokio::spawn(async move { service.ready().await.unwrap().call(job).await.unwrap() }));
        let waiting = async || group.inspect("all").await.unwrap().waiting == calls.len() as u64;
        eventually("it to wait", SOON, waiting).await;
    }
    assert!(holder.done().await.unwrap());
    for call in calls {
        call.await.unwrap();
    }
    let handled = handled.lock().unwrap();
    handled.clone()
}

fn job(tenant: &'static str, class: u8) -> Job {
    Job { tenant, class }
}

async fn tenants_have_their_turns(stores: Stores) {
    let group = WaitGroup::builder(1).fair().build(&stores.open(), "permits").unwrap();
    let jobs = [job("greedy", 0), job("greedy", 0), job("greedy", 0), job("greedy", 0), job("modest", 0)];
    let handled = order(group, |layer| layer.fair_by(|job: &Job| job.tenant), &jobs).await;
    let modest = handled.iter().position(|job| job.tenant == "modest");
    assert!(modest < Some(2), "{handled:?}");
}

async fn classes_go_first(stores: Stores) {
    let group = WaitGroup::builder(1).priorities(2).build(&stores.open(), "permits").unwrap();
    let jobs = [job("a", 1), job("b", 1), job("c", 0)];
    let handled = order(group, |layer| layer.priority(|job: &Job| job.class), &jobs).await;
    assert_eq!(handled, [job("c", 0), job("a", 1), job("b", 1)]);
}

async fn a_turn_says_all(stores: Stores) {
    let group = WaitGroup::builder(1).fair().priorities(3).build(&stores.open(), "permits").unwrap();
    let jobs = [job("greedy", 1), job("greedy", 1), job("greedy", 1), job("modest", 1), job("late", 0)];
    let by_turn = |layer: ConcurrencyLimitLayer<Job>| {
        layer.turn(|_| Turn::new().share(2)).fair_by(|job: &Job| job.tenant).priority(|job: &Job| job.class)
    };
    let handled = order(group.clone(), by_turn, &jobs).await;
    assert_eq!(handled[0], job("late", 0));
    assert!(handled[..3].contains(&job("modest", 1)), "{handled:?}");

    let layer = ConcurrencyLimitLayer::new(group, |_: &Job| "all").priority(|job: &Job| job.class);
    let service = layer.layer(service_fn(async |_: Job| Ok::<_, Infallible>(())));
    let refused = service.oneshot(job("odd", 3)).await.unwrap_err();
    assert!(refused.to_string().contains("below 3"), "{refused}");
}
