//! Clones of a layer, of its services, and layers of one family all share what there is.

use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _};

use crate::leases::layers::{becomes_free, by_name, on_each_layer};
use crate::probe::Probe;
use crate::stores::{SOON, Stores, on_each_store};
use crate::support::eventually;

on_each_store!(clones_share, families_share);

async fn clones_share(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let probe = Probe::hanging();
        let mut service = layer.layer(probe.clone());
        let (clone, sibling) = (service.clone(), layer.clone().layer(probe.clone()));
        let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
        eventually("it to run", SOON, async || {
            assert_pending!(call.poll());
            probe.running() == 1
        })
        .await;
        for other in [clone, sibling, service.clone(), layer.layer(probe.clone())] {
            assert!(other.oneshot("ann").await.is_err());
        }
        assert_eq!(probe.calls(), 1);
        drop(call);
        becomes_free(&stores, "ann").await;
    });
}

/// As in two processes: each with connections of its own.
async fn families_share(stores: Stores) {
    let mut running = Vec::new();
    let probe = Probe::hanging();
    on_each_layer!(stores, by_name, |layer| {
        let service = tower::util::BoxCloneService::new(layer.layer(probe.clone()));
        let mut call = task::spawn(service.oneshot("ann"));
        eventually("it to run", SOON, async || {
            assert_pending!(call.poll());
            probe.running() == running.len() + 1
        })
        .await;
        running.push(call);
    });
    on_each_layer!(stores, by_name, |layer| {
        assert!(layer.layer(Probe::default()).oneshot("ann").await.is_err());
    });
    drop(running);
    becomes_free(&stores, "ann").await;
}
