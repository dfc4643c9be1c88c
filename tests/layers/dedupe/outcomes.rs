//! What becomes of items: which outcomes mean that one was handled, and that all else gives the claim back.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tonic::Code;
use tower::{BoxError, Layer as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::dedupe::{Claim, Claimed};
use tower_distributed::{Dedupe, DedupeLayer, LeaseHandle, RefusalKind};

use crate::contract::told::told;
use crate::dedupe::exact;
use crate::flights::kind;
use crate::items::{by_name, dedupe, is_handled};
use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    refusals_are_told,
    what_is_none_is_handled,
    what_turns_out_to_be_one_under_the_claim_is_not_handled,
    a_response_that_is_no_success_gives_it_back,
);

async fn taken(dedupe: &Dedupe, item: &str) -> Claim {
    let Claimed::New(claim) = dedupe.try_claim(item).await.unwrap() else {
        panic!("{item}")
    };
    claim
}

/// By a filter, and exactly.
async fn refusals_are_told(stores: Stores) {
    for dedupe in [dedupe(&stores.open()), exact(&stores.open())] {
        assert!(taken(&dedupe, "a").await.confirm().await.unwrap());
        let other = taken(&dedupe, "b").await;
        let layer = DedupeLayer::new(dedupe, by_name);
        for (item, kind, code) in [
            ("a", RefusalKind::Duplicate, Code::AlreadyExists),
            ("b", RefusalKind::InFlight, Code::Aborted),
        ] {
            let refused = told(
                layer
                    .layer(Probe::default())
                    .oneshot(item)
                    .await
                    .unwrap_err(),
            );
            // As long as claims usually last.
            let after = refused.http.problem().1;
            assert!(
                after.map_or(item == "a", |after| item == "b"
                    && (1..=30).contains(&after)),
                "{after:?}"
            );
            refused.is((kind, (409, after, "Conflict"), code));
        }
        let brief = layer
            .max_wait(Duration::from_millis(20))
            .layer(Probe::default());
        assert_eq!(
            kind(&brief.oneshot("b").await.unwrap_err()),
            Some(RefusalKind::WaitedTooLong)
        );
        assert!(other.release().await.unwrap());
    }
}

/// The filter is wrong, and the truth says so. The readiness is kept meanwhile.
async fn what_is_none_is_handled(stores: Stores) {
    dedupe(&stores.open())
        .filter()
        .unwrap()
        .insert("a")
        .await
        .unwrap();
    let (truth, asked) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (known, counted) = (truth.clone(), asked.clone());
    let layer = DedupeLayer::new(dedupe(&stores.open()), by_name).confirm_duplicate(
        move |_: &&'static str| {
            counted.fetch_add(1, Ordering::SeqCst);
            let known = known.clone();
            async move {
                tokio::task::yield_now().await;
                known.load(Ordering::SeqCst)
            }
        },
    );
    let probe = Probe::default();
    let service = layer.layer(probe.clone());
    assert_eq!(service.clone().oneshot("new").await.unwrap(), "new");
    assert_eq!(
        asked.load(Ordering::SeqCst),
        0,
        "there is nothing to look up"
    );
    assert_eq!(service.clone().oneshot("a").await.unwrap(), "a");
    assert_eq!(
        asked.load(Ordering::SeqCst),
        2,
        "before and under the claim"
    );
    truth.store(true, Ordering::SeqCst);
    assert_eq!(
        kind(&service.oneshot("a").await.unwrap_err()),
        Some(RefusalKind::Duplicate)
    );
    assert_eq!((probe.polled_ready(), probe.calls()), (3, 2));
    assert_eq!(is_handled(&stores, "a").await, Some(true));
}

/// Many at once of an item that the filter takes for known: whoever waits behind the one that handles it does not.
async fn what_turns_out_to_be_one_under_the_claim_is_not_handled(stores: Stores) {
    dedupe(&stores.open())
        .filter()
        .unwrap()
        .insert("a")
        .await
        .unwrap();
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
    let calls: Vec<_> = services
        .map(|service| tokio::spawn(service.oneshot("a")))
        .collect();
    let mut handled = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(()) => handled += 1,
            Err(error) => assert_eq!(kind(&error), Some(RefusalKind::Duplicate)),
        }
    }
    assert_eq!((handled, times.load(Ordering::SeqCst)), (1, 1));
    eventually("nobody to hold it", SOON, async || {
        is_handled(&stores, "a").await == Some(true)
    })
    .await;
}

/// Each time the lease has a new fence.
async fn a_response_that_is_no_success_gives_it_back(stores: Stores) {
    let (sender, mut leases) = tokio::sync::mpsc::unbounded_channel();
    let layer = DedupeLayer::new(dedupe(&stores.open()), by_name);
    let layer = layer.success(|outcome: &Result<&'static str, Infallible>| *outcome == Ok("good"));
    let layer = layer.on_lease(move |lease: &LeaseHandle, _: &mut &'static str| {
        assert!(lease.is_held());
        sender.send(lease.clone()).unwrap();
    });
    let (service, mut last) = (layer.layer(Probe::default()), 0);
    for _ in 0..3 {
        assert_eq!(service.clone().oneshot("bad").await.unwrap(), "bad");
        assert_eq!(is_handled(&stores, "bad").await, Some(false));
        let lease = leases.recv().await.unwrap();
        assert!(!lease.is_held() && lease.fence().unwrap() > last);
        last = lease.fence().unwrap();
    }
    assert_eq!(service.clone().oneshot("good").await.unwrap(), "good");
    assert_eq!(
        kind(&service.oneshot("good").await.unwrap_err()),
        Some(RefusalKind::Duplicate)
    );
}
