//! Clones of a layer, of its services, and layers of one family all share what there is.

use tokio_test::task;
use tower::ServiceExt as _;
use tower_distributed::Refusal;

use super::subjects::{Refusing, on_subjects};
use crate::probe::Probe;
use crate::stores::Stores;

on_subjects!(refusing: clones_and_families_share);

async fn clones_and_families_share<T: Refusing>(stores: Stores) {
    let layer = T::layer(&stores.open());
    let probe = Probe::hanging();
    let service = T::around(&layer, probe.clone());
    let mut call = task::spawn(service.clone().oneshot("ann:1".into()));
    probe.runs(1, &mut call).await;
    let around = |layer| T::around(layer, probe.clone());
    // The last is as in another process, with connections of its own.
    let family = T::layer(&stores.open());
    for other in [
        service.clone(),
        service,
        around(&layer.clone()),
        around(&layer),
        around(&family),
    ] {
        assert!(
            other
                .oneshot("ann:2".into())
                .await
                .unwrap_err()
                .is::<Refusal>()
        );
    }
    assert_eq!(probe.calls(), 1);
    drop(call);
    T::becomes(&stores, "ann", T::CALLED).await;
}
