//! Requests that wait for a permit in another order than that of arrival: by tenant and by class.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::wait_group::Turn;
use tower_distributed::{ConcurrencyLimitLayer, WaitGroup};

use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(by_tenant_and_by_class);

/// A tenant, and a class.
type Job = (&'static str, u8);

async fn by_tenant_and_by_class(stores: Stores) {
    let group = WaitGroup::builder(1)
        .fair()
        .priorities(3)
        .build(&stores.open(), "permits")
        .unwrap();
    let handled = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&handled);
    let note = service_fn(move |job: Job| {
        noted.lock().unwrap().push(job);
        async { Ok::<_, Infallible>(()) }
    });
    let layer = ConcurrencyLimitLayer::new(group.clone(), |_: &Job| "all").max_wait(SOON);
    let layer = layer
        .turn(|_| Turn::new().share(2))
        .fair_by(|job: &Job| job.0)
        .priority(|job: &Job| job.1);
    let service = layer.layer(note.clone());
    let holder = group.add("all").await.unwrap();
    let mut calls = Vec::new();
    // They wait one behind the other, before the only permit is free.
    for job in [
        ("greedy", 1),
        ("greedy", 1),
        ("greedy", 1),
        ("modest", 1),
        ("late", 0),
    ] {
        calls.push(tokio::spawn(service.clone().oneshot(job)));
        let waiting = async || group.inspect("all").await.unwrap().waiting == calls.len() as u64;
        eventually("it to wait", SOON, waiting).await;
    }
    assert!(holder.done().await.unwrap());
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let handled = handled.lock().unwrap().clone();
    assert_eq!(handled[0], ("late", 0));
    assert!(handled[..3].contains(&("modest", 1)), "{handled:?}");

    let layer = ConcurrencyLimitLayer::new(group, |_: &Job| "all").priority(|job: &Job| job.1);
    let refused = layer.layer(note).oneshot(("odd", 3)).await.unwrap_err();
    assert!(refused.to_string().contains("below 3"), "{refused}");
}
