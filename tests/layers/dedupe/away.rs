//! While the store is away.

use tokio_test::task;
use tower::util::BoxCloneService;
use tower::{Layer as _, ServiceExt as _};
use tower_distributed::{DedupeLayer, RefusalKind};

use crate::dedupe::exact;
use crate::flights::kind;
use crate::items::{by_name, dedupe};
use crate::probe::Probe;
use crate::stores::{SOON, gone, shared_by, started};
use support::eventually;

/// What becomes of an item that is handled when the store goes away is told.
#[tokio::test]
async fn a_store_that_goes_away_and_comes_back() {
    let (redis, store) = started().await;
    let (sender, mut unsure) = tokio::sync::mpsc::unbounded_channel();
    let layer = DedupeLayer::new(dedupe(&store), by_name);
    let layer = layer.on_unsure(move |unsure| sender.send(unsure.error.is_some()).unwrap());
    let (inner, mut handle) = tower_test::mock::pair::<&'static str, &'static str>();
    let service = BoxCloneService::new(layer.layer(inner));
    let call = tokio::spawn(service.clone().oneshot("a"));
    let (_, answer) = handle.next_request().await.unwrap();
    redis.kill9();
    answer.send_response("handled");
    assert_eq!(call.await.unwrap().unwrap(), "handled", "its response is its own");
    assert_eq!(unsure.recv().await, Some(true));
    let error = service.clone().oneshot("b").await.unwrap_err();
    assert_eq!(kind(&error), Some(RefusalKind::StoreUnavailable));
    redis.restart().await;
    let seen = dedupe(&store);
    eventually("it to be noted after all", SOON, async || {
        matches!(seen.filter().unwrap().contains("a").await, Ok(true))
    })
    .await;
    assert!(!seen.filter().unwrap().contains("b").await.unwrap());
    assert_eq!(kind(&service.oneshot("a").await.unwrap_err()), Some(RefusalKind::Duplicate));
}

/// A layer of one's own is no memory of one's own, in either mode.
#[tokio::test]
async fn routes_with_one_dedupe_share_what_they_remember() {
    let store = gone().await;
    for seen in [dedupe(&store), exact(&store)] {
        let route = || DedupeLayer::new(seen.clone(), by_name).on_store_failure(shared_by(1));
        let handled = route().layer(Probe::default()).oneshot("a").await.unwrap();
        assert_eq!(handled, "a");
        let error = route().layer(Probe::default()).oneshot("a").await.unwrap_err();
        assert_eq!(kind(&error), Some(RefusalKind::Duplicate));

        let hanging = Probe::hanging();
        let mut first = task::spawn(route().layer(hanging.clone()).oneshot("b"));
        hanging.runs(1, &mut first).await;
        let error = route().layer(Probe::default()).oneshot("b").await.unwrap_err();
        assert_eq!(kind(&error), Some(RefusalKind::InFlight));
    }
}
