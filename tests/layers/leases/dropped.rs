//! A response future may be dropped at any time, and leaves neither a lease nor a place in the queue.

use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::rw_lock::Access;
use tower_distributed::{ConcurrencyLimitLayer, RwLockLayer};

use crate::families::{Other, becomes_free, by_name, is_free, locks, on_each_layer, permits};
use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(in_line_for_a_permit, in_line_for_a_lock, when_its_turn_has_come,);

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
