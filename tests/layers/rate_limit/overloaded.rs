//! When the store takes no new key: no layer lets a request pass for that, however it is set for outages.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio_test::task;
use tower::{BoxError, Layer, Service, ServiceExt as _};
use tower_distributed::{
    BloomFilter, ConcurrencyLimitLayer, Dedupe, DedupeLayer, Mutex, MutexLayer, RateLimitLayer,
    Refusal, RefusalKind, RwLock, RwLockLayer, Store, StoreBuilder, StoreFailure, WaitGroup,
};

use crate::probe::Probe;
use crate::stores::at_most;

fn by_request(request: &u32) -> u32 {
    *request
}

fn bounded(max_keys: usize) -> Store {
    Store::builder().max_keys(max_keys).in_memory().unwrap()
}

/// In which one more key is one too many.
async fn full() -> Store {
    let store = bounded(1);
    assert!(
        at_most(1, &store)
            .allow("a key")
            .await
            .unwrap()
            .is_admitted()
    );
    store
}

const ON_STORE_FAILURE: [StoreFailure; 3] = [
    StoreFailure::FailClosed,
    StoreFailure::FailOpen,
    StoreFailure::LocalShare {
        replicas: NonZeroU32::MIN,
    },
];

/// A request is refused, as overloaded.
async fn refused<S>(layer: impl Layer<Probe, Service = S>)
where
    S: Service<u32, Response: Debug, Error = BoxError>,
{
    let probe = Probe::default();
    let calls = probe.clone();
    let error = layer.layer(probe).oneshot(7).await.unwrap_err();
    let refusal = *error.downcast::<Refusal>().unwrap();
    assert_eq!(refusal.kind(), RefusalKind::Overloaded, "{refusal:?}");
    assert_eq!(refusal.retry_after(), Some(Duration::from_secs(1)));
    assert_eq!(calls.calls(), 0);
}

#[tokio::test]
async fn requests_are_refused() {
    let second = Duration::from_secs(1);
    for on_store_failure in ON_STORE_FAILURE {
        let limit = |store: &Store| RateLimitLayer::new(at_most(9, store), by_request);
        refused(limit(&full().await).on_store_failure(on_store_failure)).await;
        refused(
            limit(&full().await)
                .on_store_failure(on_store_failure)
                .max_wait(second),
        )
        .await;
        let permits = WaitGroup::new(&full().await, "permits", 9).unwrap();
        refused(ConcurrencyLimitLayer::new(permits, by_request).on_store_failure(on_store_failure))
            .await;
        let mutex = Mutex::new(&full().await, "mutexes").unwrap();
        refused(
            MutexLayer::new(mutex, by_request)
                .on_store_failure(on_store_failure)
                .max_wait(second),
        )
        .await;
        // No room for the filter; room for the filter and none for a claim.
        for store in [full().await, bounded(1)] {
            let filter = BloomFilter::new(&store, "items", 1000, 1e-9).unwrap();
            let layer = DedupeLayer::new(
                Dedupe::builder().remember_forever().build(&filter).unwrap(),
                by_request,
            );
            refused(layer.on_store_failure(on_store_failure)).await;
        }
    }
    refused(RwLockLayer::new(
        RwLock::new(&full().await, "locks").unwrap(),
        by_request,
    ))
    .await;
}

/// In an outage, the local share takes no more keys and bytes than the builder allows. What is there goes on.
#[tokio::test]
async fn a_local_share_takes_no_new_key_beyond_its_bounds() {
    const SHARE: StoreFailure = StoreFailure::LocalShare {
        replicas: NonZeroU32::MIN,
    };
    let away = |store: StoreBuilder| store.redis("redis://127.0.0.1:1").unwrap();
    for store in [
        away(Store::builder().max_keys(20)),
        away(Store::builder().max_bytes(1 << 16)),
    ] {
        let permits = WaitGroup::new(&store, "permits", 1).unwrap();
        let limited = ConcurrencyLimitLayer::new(permits, by_request).on_store_failure(SHARE);
        let probe = Probe::hanging();
        let mut held = task::spawn(limited.layer(probe.clone()).oneshot(0));
        probe.runs(1, &mut held).await;
        let limit = RateLimitLayer::new(at_most(2, &store), by_request).on_store_failure(SHARE);
        let ask = async |key: u32| match limit.layer(Probe::default()).oneshot(key).await {
            Err(error) => Some(error.downcast::<Refusal>().unwrap().kind()),
            Ok(_) => None,
        };
        let mut admitted = 0;
        while ask(admitted).await.is_none() {
            admitted += 1;
            assert!(admitted < 2000, "all made-up keys are admitted");
        }
        assert_eq!(ask(admitted + 1).await, Some(RefusalKind::Overloaded));
        assert_eq!(ask(0).await, None, "a key that has state goes on");
        assert_eq!(ask(0).await, Some(RefusalKind::RateLimited));
        let waits = limited
            .layer(Probe::default())
            .oneshot(0)
            .await
            .unwrap_err();
        assert_eq!(
            waits.downcast::<Refusal>().unwrap().kind(),
            RefusalKind::NoPermit,
            "the permit is held"
        );
    }
}
