//! What becomes of duplicates, and of what is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio_test::{assert_pending, task};
use tower::util::BoxCloneService;
use tower::{BoxError, Layer as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::dedupe::DuplicateAction;
use tower_distributed::{DedupeLayer, LeaseHandle, RefusalKind};

use crate::flights::kind;
use crate::items::{becomes_free, by_name, claim, dedupe, handled, is_handled};
use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    they_are_refused,
    they_are_marked,
    they_are_answered,
    what_is_in_flight_is_refused,
    what_is_in_flight_is_waited_for,
    what_is_none_is_handled,
    what_turns_out_to_be_one_under_the_claim_is_not_handled,
    readiness_is_kept_while_a_duplicate_is_looked_up,
    no_key_passes,
    a_lease_gives_a_fence,
);

async fn they_are_refused(stores: Stores) {
    let probe = Probe::default();
    let service = DedupeLayer::new(dedupe(&stores.open()), by_name).layer(probe.clone());
    assert_eq!(service.clone().oneshot("a").await.unwrap(), "a");
    for _ in 0..3 {
        let error = service.clone().oneshot("a").await.unwrap_err();
        assert_eq!(kind(&error), Some(RefusalKind::Duplicate));
    }
    assert_eq!(probe.calls(), 1);
    assert_eq!(is_handled(&stores, "a").await, Some(true));
}

async fn they_are_marked(stores: Stores) {
    handled(&stores, "a").await;
    let layer = DedupeLayer::new(dedupe(&stores.open()), by_name);
    let layer = layer.on_duplicate(|_, _| DuplicateAction::Pass("marked"));
    let service = layer.on_lease(|_: &LeaseHandle, _: &mut &'static str| {}).layer(Probe::default());
    assert_eq!(service.clone().oneshot("b").await.unwrap(), "b");
    for item in ["a", "b"] {
        assert_eq!(service.clone().oneshot(item).await.unwrap(), "marked");
        assert_eq!(is_handled(&stores, item).await, Some(true));
    }
}

async fn they_are_answered(stores: Stores) {
    handled(&stores, "a").await;
    let probe = Probe::default();
    let layer = DedupeLayer::new(dedupe(&stores.open()), by_name);
    let service = layer.on_duplicate(|_, _| DuplicateAction::Answer("known")).layer(probe.clone());
    assert_eq!(service.clone().oneshot("a").await.unwrap(), "known");
    assert_eq!((service.oneshot("b").await.unwrap(), probe.calls()), ("b", 1));
}

async fn what_is_in_flight_is_refused(stores: Stores) {
    let other = claim(&stores, "a").await;
    let service = DedupeLayer::new(dedupe(&stores.open()), by_name).layer(Probe::default());
    let error = service.clone().oneshot("a").await.unwrap_err();
    assert_eq!(kind(&error), Some(RefusalKind::InFlight));
    assert_eq!(service.clone().oneshot("b").await.unwrap(), "b");
    assert!(other.release().await.unwrap());
    assert_eq!(service.oneshot("a").await.unwrap(), "a");
}

async fn what_is_in_flight_is_waited_for(stores: Stores) {
    for (item, is_confirmed) in [("a", true), ("b", false)] {
        let other = claim(&stores, item).await;
        let layer = DedupeLayer::new(dedupe(&stores.open()), by_name).max_wait(HOUR);
        let mut call = task::spawn(layer.layer(Probe::default()).oneshot(item));
        assert_pending!(call.poll());
        if is_confirmed {
            assert!(other.confirm().await.unwrap());
            assert_eq!(kind(&call.await.unwrap_err()), Some(RefusalKind::Duplicate));
        } else {
            assert!(other.release().await.unwrap());
            assert_eq!(call.await.unwrap(), item);
        }
        assert_eq!(is_handled(&stores, item).await, Some(true));
    }
}

/// The filter is wrong, and the truth says so.
async fn what_is_none_is_handled(stores: Stores) {
    dedupe(&stores.open()).filter().unwrap().insert("a").await.unwrap();
    let (truth, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (known, counted) = (truth.clone(), asked.clone());
    let layer =
        DedupeLayer::new(dedupe(&stores.open()), by_name).confirm_duplicate(move |_: &&'static str| {
            counted.fetch_add(1, Ordering::SeqCst);
            let known = known.clone();
            async move { known.load(Ordering::SeqCst) }
        });
    let probe = Probe::default();
    let service = layer.layer(probe.clone());
    assert_eq!(service.clone().oneshot("new").await.unwrap(), "new");
    assert_eq!(asked.load(Ordering::SeqCst), 0, "there is nothing to look up");
    assert_eq!(service.clone().oneshot("a").await.unwrap(), "a");
    assert_eq!(asked.load(Ordering::SeqCst), 2, "before and under the claim");
    truth.store(true, Ordering::SeqCst);
    assert_eq!(kind(&service.oneshot("a").await.unwrap_err()), Some(RefusalKind::Duplicate));
    assert_eq!(probe.calls(), 2);
    assert_eq!(is_handled(&stores, "a").await, Some(true));
}

/// Many at once of an item that the filter takes for known: whoever waits behind the one that handles it does not.
async fn what_turns_out_to_be_one_under_the_claim_is_not_handled(stores: Stores) {
    dedupe(&stores.open()).filter().unwrap().insert("a").await.unwrap();
    let times = Arc::new(AtomicUsize::new(0));
    let services = (0..8).map(|_| {
        let (truth, handling) = (times.clone(), times.clone());
        let inner = service_fn(move |_: &'static str| {
            let handling = handling.clone();
            async move {
                tokio::task::yield_now().await;
                handling.fetch_add(1, Ordering::SeqCst);
                Ok::<_, BoxError>(())
            }
        });
        let layer = DedupeLayer::new(dedupe(&stores.open()), by_name).max_wait(HOUR);
        let layer = layer.confirm_duplicate(move |_: &&'static str| {
            let is_known = truth.load(Ordering::SeqCst) > 0;
            async move { is_known }
        });
        ServiceBuilder::new().layer(layer).service(inner)
    });
    let calls: Vec<_> = services.map(|service| tokio::spawn(service.oneshot("a"))).collect();
    let mut handled = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(()) => handled += 1,
            Err(error) => assert_eq!(kind(&error), Some(RefusalKind::Duplicate)),
        }
    }
    assert_eq!((handled, times.load(Ordering::SeqCst)), (1, 1));
    eventually("nobody to hold it", SOON, async || is_handled(&stores, "a").await == Some(true)).await;
}

async fn no_key_passes(stores: Stores) {
    let probe = Probe::default();
    let layer =
        DedupeLayer::new(dedupe(&stores.open()), |name: &&'static str| (*name != "none").then_some(*name));
    let service = layer.layer(probe.clone());
    for _ in 0..3 {
        assert_eq!(service.clone().oneshot("none").await.unwrap(), "none");
    }
    assert_eq!((probe.calls(), is_handled(&stores, "none").await), (3, Some(false)));
    assert_eq!(service.oneshot("some").await.unwrap(), "some");
}

async fn a_lease_gives_a_fence(stores: Stores) {
    let (sender, mut leases) = tokio::sync::mpsc::unbounded_channel();
    let layer = DedupeLayer::new(dedupe(&stores.open()), by_name);
    let layer = layer.success(|_: &Result<&'static str, std::convert::Infallible>| false);
    let layer = layer.on_lease(move |lease: &LeaseHandle, _: &mut &'static str| {
        assert!(lease.is_held());
        sender.send(lease.clone()).unwrap();
    });
    let service = BoxCloneService::new(layer.layer(Probe::default()));
    let mut last = 0;
    for _ in 0..3 {
        assert_eq!(service.clone().oneshot("a").await.unwrap(), "a");
        let lease = leases.recv().await.unwrap();
        assert!(!lease.is_held() && lease.fence().unwrap() > last);
        last = lease.fence().unwrap();
    }
    becomes_free(&stores, "a").await;
}

async fn readiness_is_kept_while_a_duplicate_is_looked_up(stores: Stores) {
    handled(&stores, "ann").await;
    let probe = Probe::default();
    let layer = DedupeLayer::new(dedupe(&stores.open()), by_name);
    let layer = layer.confirm_duplicate(|_: &&'static str| async {
        tokio::task::yield_now().await;
        false
    });
    let service = layer.layer(probe.clone());
    assert_eq!(service.oneshot("ann").await.unwrap(), "ann");
    assert_eq!((probe.polled_ready(), probe.calls()), (1, 1));
}
