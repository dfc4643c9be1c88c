//! A response future may be dropped at any time, and leaves neither a lease nor a place in the queue.

use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::rw_lock::Access;
use tower_distributed::{ConcurrencyLimitLayer, RwLockLayer};

use crate::leases::layers::{Other, becomes_free, by_name, is_free, locks, on_each_layer, permits};
use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use crate::support::eventually;

on_each_store!(
    before_the_first_poll,
    after_each_number_of_polls,
    in_line_for_a_permit,
    in_line_for_a_lock,
    when_its_turn_has_come,
    while_the_service_works,
);

async fn before_the_first_poll(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let probe = Probe::default();
        let mut service = layer.layer(probe.clone());
        drop(service.ready().await.unwrap().call("ann"));
        assert_eq!(probe.calls(), 0);
        becomes_free(&stores, "ann").await;
    });
}

async fn after_each_number_of_polls(stores: Stores) {
    const YIELDS: usize = 3;
    on_each_layer!(stores, by_name, |layer| {
        for polls in 1.. {
            let probe = Probe::yielding(YIELDS);
            let mut service = layer.clone().layer(probe.clone());
            let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
            let mut done = call.poll().is_ready();
            for _ in 1..polls {
                eventually("the next poll", SOON, async || call.is_woken()).await;
                done = call.poll().is_ready();
            }
            drop(call);
            assert_eq!(probe.running(), 0);
            becomes_free(&stores, "ann").await;
            if done {
                assert_eq!(probe.calls(), 1);
                assert!(polls > YIELDS, "{polls} polls");
                break;
            }
        }
    });
}

async fn in_line_for_a_permit(stores: Stores) {
    let group = permits(&stores.open(), 2);
    let held = group.add("ann").await.unwrap();
    let probe = Probe::default();
    let layer = ConcurrencyLimitLayer::new(group.clone(), by_name).weight(|_: &&str| 2).max_wait(HOUR);
    let mut service = layer.layer(probe.clone());
    let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
    // One is free, and kept for who waits for two.
    eventually("it to be in line", SOON, async || {
        assert_pending!(call.poll());
        group.try_add("ann").await.is_err()
    })
    .await;
    drop(call);
    eventually("it to have left", SOON, async || group.try_add("ann").await.is_ok()).await;
    assert!(held.done().await.unwrap());
    assert_eq!(probe.calls(), 0);
    becomes_free(&stores, "ann").await;
}

async fn in_line_for_a_lock(stores: Stores) {
    let lock = locks(&stores.open());
    let held = lock.read("ann").await.unwrap();
    let probe = Probe::default();
    let layer = RwLockLayer::new(lock.clone(), by_name).access(|_: &&str| Access::Write).max_wait(HOUR);
    let mut service = layer.layer(probe.clone());
    let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
    eventually("its intent", SOON, async || {
        assert_pending!(call.poll());
        lock.try_read("ann").await.is_err()
    })
    .await;
    drop(call);
    eventually("its intent to be gone", SOON, async || lock.try_read("ann").await.is_ok()).await;
    assert!(held.release().await.unwrap());
    assert_eq!(probe.calls(), 0);
    becomes_free(&stores, "ann").await;
}

/// What was granted to a future that nobody polls any more is given back with it.
async fn when_its_turn_has_come(stores: Stores) {
    let other = Other::holds(&stores, "ann").await;
    let probe = Probe::default();
    let mut calls = Vec::new();
    on_each_layer!(stores, by_name, |layer| {
        let mut service = layer.max_wait(HOUR).layer(probe.clone());
        calls.push(task::spawn(
            tower::util::BoxCloneService::new(service.ready().await.unwrap().clone()).oneshot("ann"),
        ));
    });
    for call in &mut calls {
        assert_pending!(call.poll());
        if stores.open().to_string() == "redis" {
            eventually("the answer that it waits", SOON, async || call.is_woken()).await;
            assert_pending!(call.poll());
        }
    }
    other.leaves().await;
    for call in &mut calls {
        eventually("its turn", SOON, async || call.is_woken()).await;
    }
    assert!(!is_free(&stores, "ann").await);
    drop(calls);
    assert_eq!(probe.calls(), 0);
    becomes_free(&stores, "ann").await;
}

async fn while_the_service_works(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let probe = Probe::hanging();
        let mut service = layer.layer(probe.clone());
        let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
        eventually("the service to work", SOON, async || {
            assert_pending!(call.poll());
            probe.running() == 1
        })
        .await;
        assert!(!is_free(&stores, "ann").await);
        drop(call);
        assert_eq!(probe.running(), 0, "what is dropped is dropped all the way");
        becomes_free(&stores, "ann").await;
    });
}

#[test]
fn without_a_runtime_a_drop_does_not_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stores = Stores::in_memory();
    on_each_layer!(stores, by_name, |layer| {
        let mut service = layer.layer(Probe::hanging());
        runtime.block_on(async { assert!(service.ready().await.is_ok()) });
        let mut call = task::spawn(service.call("ann"));
        runtime.block_on(async { assert_pending!(call.poll()) });
        drop(call);
    });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(becomes_free(&stores, "ann"));
}
