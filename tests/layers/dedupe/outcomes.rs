//! What of an outcome means that an item was handled; and that all else gives the claim back.

use std::convert::Infallible;

use tokio_test::{assert_pending, task};
use tower::{BoxError, Layer as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::{DedupeLayer, LeaseHandle, RefusalKind, Store};

use crate::flights::kind;
use crate::items::{becomes_free, by_name, dedupe, is_handled};
use crate::probe::Probe;
use crate::stores::{Stores, on_each_store};
use support::patient;
use support::redis_server::RedisServer;

on_each_store!(
    an_error_gives_it_back,
    a_panic_gives_it_back,
    a_response_that_is_no_success_gives_it_back,
    what_is_answered_is_noted,
);

async fn an_error_gives_it_back(stores: Stores) {
    let layer = DedupeLayer::new(dedupe(&stores.open()), by_name);
    let service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(async |_: &'static str| Err::<(), BoxError>("it does not work".into())));
    for _ in 0..3 {
        let error = service.clone().oneshot("a").await.unwrap_err();
        assert_eq!((kind(&error), error.to_string().as_str()), (None, "it does not work"));
        // At once: whoever hears of the failure may send it again.
        assert_eq!(is_handled(&stores, "a").await, Some(false));
    }
}

async fn a_panic_gives_it_back(stores: Stores) {
    let layer = DedupeLayer::new(dedupe(&stores.open()), by_name);
    let service = ServiceBuilder::new().layer(layer).service(service_fn(async |_: &'static str| {
        std::panic::resume_unwind(Box::new("a handler panics"));
        #[allow(unreachable_code)]
        Ok::<(), BoxError>(())
    }));
    assert!(tokio::spawn(service.oneshot("a")).await.unwrap_err().is_panic());
    becomes_free(&stores, "a").await;
}

async fn a_response_that_is_no_success_gives_it_back(stores: Stores) {
    let layer = DedupeLayer::new(dedupe(&stores.open()), by_name);
    let layer = layer.success(|outcome: &Result<&'static str, Infallible>| *outcome == Ok("good"));
    let service = layer.layer(Probe::default());
    for _ in 0..2 {
        assert_eq!(service.clone().oneshot("bad").await.unwrap(), "bad");
        assert_eq!(is_handled(&stores, "bad").await, Some(false));
    }
    assert_eq!(service.clone().oneshot("good").await.unwrap(), "good");
    assert_eq!(kind(&service.oneshot("good").await.unwrap_err()), Some(RefusalKind::Duplicate));
}

/// The response is held back until it can be relied upon.
async fn what_is_answered_is_noted(stores: Stores) {
    let service =
        DedupeLayer::new(dedupe(&stores.open()), |item: &usize| *item as u64).layer(Probe::default());
    for item in 0..50 {
        assert_eq!(service.clone().oneshot(item).await.unwrap(), item);
        assert_eq!(is_handled(&stores, &item.to_string()).await, Some(true));
    }
}

#[tokio::test]
async fn it_is_cancelled_when_its_claim_is_lost() {
    let redis = RedisServer::start().await;
    let store = patient!(redis.url());
    let filter = tower_distributed::BloomFilter::new(&store, "items", 1000, 1e-9).unwrap();
    let ttl = std::time::Duration::from_secs(1);
    let dedupe = tower_distributed::Dedupe::builder().remember_forever().ttl(ttl).build(&filter).unwrap();
    for cancels in [true, false] {
        let item = if cancels { "cancelled" } else { "goes on" };
        let probe = Probe::hanging();
        let (sender, mut leases) = tokio::sync::mpsc::unbounded_channel();
        let layer = DedupeLayer::new(dedupe.clone(), by_name).cancel_when_lost(cancels);
        let layer = layer.on_lease(move |lease: &LeaseHandle, _: &mut &'static str| {
            sender.send(lease.clone()).unwrap();
        });
        let mut call = task::spawn(layer.layer(probe.clone()).oneshot(item));
        probe.runs(1, &mut call).await;
        let claims: Vec<String> = redis.query(&["KEYS", "*:claim"]).unwrap();
        assert_eq!(claims.len(), 1, "{claims:?}");
        assert_eq!(redis.query(&["DEL", &claims[0]]), Ok(1));
        leases.recv().await.unwrap().lost().await;
        if cancels {
            assert_eq!(kind(&call.await.unwrap_err()), Some(RefusalKind::LeaseLost));
            assert_eq!(probe.running(), 0, "dropped before anybody heard of it");
        } else {
            assert_pending!(call.poll());
            assert_eq!(probe.running(), 1);
        }
        assert!(!filter.contains(item).await.unwrap());
    }
}
