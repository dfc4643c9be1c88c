//! Clones of a layer, of its services, and layers of one family all share one flight.

use std::convert::Infallible;

use tokio_test::{assert_pending, task};
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::SingleFlightLayer;

use crate::flights::{build, builder, by_name, layer};
use crate::probe::Probe;
use crate::stores::{Stores, on_each_store};

on_each_store!(clones_share, families_share, other_names_do_not_share, a_hundred_share_one);

async fn clones_share(stores: Stores) {
    let layer = layer::<Infallible>(&stores);
    let probe = Probe::yielding(3);
    let service = layer.layer(probe.clone());
    let mut calls = Vec::new();
    for other in [service.clone(), layer.clone().layer(probe.clone()), service, layer.layer(probe.clone())] {
        let mut call = task::spawn(other.oneshot(format!("ann:{}", calls.len())));
        assert_pending!(call.poll());
        calls.push(call);
    }
    for call in calls {
        assert_eq!(call.await.unwrap(), "ann:0");
    }
    assert_eq!(probe.calls(), 1);
}

/// As in two processes: each with connections of its own.
async fn families_share(stores: Stores) {
    let probe = Probe::yielding(3);
    let (here, there) = (
        layer::<Infallible>(&stores).layer(probe.clone()),
        layer::<Infallible>(&stores).layer(probe.clone()),
    );
    let (one, other) = tokio::join!(here.oneshot("ann:1".into()), there.oneshot("ann:2".into()));
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(probe.calls(), 1);
}

async fn other_names_do_not_share(stores: Stores) {
    let store = stores.open();
    let other = builder::<Infallible>().build(&store, "others").unwrap();
    let (one, other) = (build(builder(), &store), other);
    for (flight, request) in [(one, "ann:1"), (other, "ann:2")] {
        let service = SingleFlightLayer::new(flight, by_name).layer(Probe::default());
        assert_eq!(service.oneshot(request.into()).await.unwrap(), request);
    }
}

async fn a_hundred_share_one(stores: Stores) {
    let probe = Probe::yielding(3);
    let services: Vec<_> = (0..4).map(|_| layer::<Infallible>(&stores).layer(probe.clone())).collect();
    let calls = (0..100).map(|number| services[number % 4].clone().oneshot(format!("ann:{number}")));
    let answers: Vec<_> = futures::future::join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(probe.calls(), 1);
}
