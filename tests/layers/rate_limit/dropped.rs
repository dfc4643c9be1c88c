//! A response future may be dropped at any time: what was not let through is given back.

use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{RateLimitLayer, Store};

use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(before_the_first_poll);

fn by_name(name: &&'static str) -> &'static str {
    name
}

async fn before_the_first_poll(stores: Stores) {
    let bucket = at_most(5, &stores.open());
    let probe = Probe::default();
    let mut service = RateLimitLayer::new(bucket.clone(), by_name).layer(probe.clone());
    drop(service.ready().await.unwrap().call("ann"));
    // In process it is decided, and handed on, within the call; elsewhere nothing has happened yet.
    let handed_on = u32::try_from(probe.calls()).unwrap();
    assert_eq!(
        handed_on,
        u32::from(stores.open().to_string() == "in-memory")
    );
    eventually(
        "no more to be charged than was handed on",
        SOON,
        async || bucket.peek("ann").await.unwrap().remaining() == 5 - handed_on,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn after_its_time_to_act_nothing_is_given_back() {
    let bucket = at_most(1, &Store::in_memory());
    bucket.allow("ann").await.unwrap();
    let probe = Probe::hanging();
    let mut service = RateLimitLayer::new(bucket.clone(), by_name)
        .max_wait(HOUR)
        .layer(probe.clone());
    let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
    let second = Duration::from_secs(1);
    for (passes, calls) in [(Duration::ZERO, 0), (HOUR - second, 0), (second, 1)] {
        tokio::time::advance(passes).await;
        assert_eq!(call.is_woken(), calls > 0);
        assert_pending!(call.poll());
        assert_eq!(probe.calls(), calls, "nothing arrives while it waits");
    }
    drop(call);
    assert_eq!(bucket.peek("ann").await.unwrap().remaining(), 0);
}

#[test]
fn without_a_runtime_a_drop_does_not_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let bucket = at_most(1, &Store::in_memory());
    let limit = RateLimitLayer::new(bucket.clone(), by_name).max_wait(100 * HOUR);
    let mut service = limit.layer(Probe::default());
    runtime.block_on(async {
        bucket.allow("ann").await.unwrap();
        service.ready().await.unwrap();
    });
    let mut call = task::spawn(service.call("ann"));
    runtime.block_on(async { assert_pending!(call.poll()) });
    drop(runtime);
    drop(call);
}
