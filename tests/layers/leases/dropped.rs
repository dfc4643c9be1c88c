//! The future of a request that waits may be dropped at any time, and leaves neither a lease nor a place in the queue.

use tokio_test::{assert_pending, task};
use tower::util::BoxCloneService;
use tower::{Layer as _, ServiceExt as _};

use crate::families::{Other, becomes_free, by_name, is_free, on_each_layer};
use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(in_line, when_its_turn_has_come);

async fn in_line(stores: Stores) {
    is_dropped(stores, false).await;
}

/// What was granted to a future that nobody polls any more is given back with it.
async fn when_its_turn_has_come(stores: Stores) {
    is_dropped(stores, true).await;
}

async fn is_dropped(stores: Stores, has_its_turn: bool) {
    let other = Other::holds(&stores, "ann").await;
    let probe = Probe::default();
    let mut calls = Vec::new();
    on_each_layer!(stores, by_name, |layer| {
        let service = BoxCloneService::new(layer.max_wait(HOUR).layer(probe.clone()));
        calls.push(task::spawn(service.oneshot("ann")));
    });
    for call in &mut calls {
        assert_pending!(call.poll());
        if stores.open().to_string() == "redis" {
            eventually("the answer that it waits", SOON, async || call.is_woken()).await;
            assert_pending!(call.poll());
        }
    }
    if has_its_turn {
        other.leaves().await;
        for call in &mut calls {
            eventually("its turn", SOON, async || call.is_woken()).await;
        }
        assert!(!is_free(&stores, "ann").await);
        drop(calls);
    } else {
        drop(calls);
        other.leaves().await;
    }
    assert_eq!(probe.calls(), 0);
    becomes_free(&stores, "ann").await;
}
