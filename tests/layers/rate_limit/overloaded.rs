//! When the store takes no new key: no layer lets a request pass for that, however it is set for outages.

use std::convert::Infallible;
use std::fmt::Debug;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio_test::task;
use tower::{BoxError, Layer, Service, ServiceExt as _};
use tower_distributed::{
    BloomFilter, ConcurrencyLimitLayer, Dedupe, DedupeLayer, Mutex, RateLimitLayer, Refusal, RefusalKind,
    RwLock, RwLockLayer, Store, StoreBuilder, StoreFailure, WaitGroup,
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
    assert!(at_most(1, &store).allow("a key").await.unwrap().is_admitted());
    store
}

const ON_STORE_FAILURE: [StoreFailure; 3] = [
    StoreFailure::FailClosed,
    StoreFailure::FailOpen,
    StoreFailure::LocalShare { replicas: NonZeroU32::MIN },
];

/// A request is refused, as overloaded.
async fn refused<S>(layer: impl Layer<Probe, Service = S>) -> Refusal
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
    refusal
}

#[tokio::test]
async fn rate_limits_refuse() {
    for on_store_failure in ON_STORE_FAILURE {
        let layer = RateLimitLayer::new(at_most(9, &full().await), by_request);
        refused(layer.on_store_failure(on_store_failure)).await;
        let waiting = at_most(9, &full().await).with_max_wait(Duration::from_secs(9));
        refused(RateLimitLayer::new(waiting, by_request).on_store_failure(on_store_failure)).await;
    }
}

#[tokio::test]
async fn concurrency_limits_refuse() {
    for on_store_failure in ON_STORE_FAILURE {
        let permits = WaitGroup::new(&full().await, "permits", 9).unwrap();
        let layer = ConcurrencyLimitLayer::new(permits, by_request);
        refused(layer.on_store_failure(on_store_failure)).await;
    }
}

#[tokio::test]
async fn locks_refuse() {
    refused(RwLockLayer::new(RwLock::new(&full().await, "locks").unwrap(), by_request)).await;
}

#[tokio::test]
async fn deduplication_refuses() {
    for on_store_failure in ON_STORE_FAILURE {
        // No room for the filter; room for the filter and none for a claim.
        for store in [full().await, bounded(1)] {
            let filter = BloomFilter::new(&store, "items", 1000, 1e-9).unwrap();
            let layer =
                DedupeLayer::new(Dedupe::builder().remember_forever().build(&filter).unwrap(), by_request);
            refused(layer.on_store_failure(on_store_failure)).await;
        }
    }
}

#[tokio::test]
async fn keys_that_have_state_go_on() {
    let store = bounded(2);
    let mutex = Mutex::new(&store, "locks").unwrap();
    let guard = mutex.lock("a").await.unwrap();
    let bucket = at_most(2, &store);
    assert!(bucket.allow("a").await.unwrap().is_admitted());
    assert!(bucket.allow("b").await.unwrap_err().is_overloaded());
    assert_eq!(bucket.peek("b").await.unwrap().remaining(), 2);
    assert!(bucket.allow("a").await.unwrap().is_admitted());
    assert!(!bucket.allow("a").await.unwrap().is_admitted());
    assert!(mutex.try_lock("a").await.unwrap_err().is_refused());
    assert!(mutex.lock("b").await.unwrap_err().is_overloaded(), "nobody waits for room");
    guard.extend().await.unwrap();
    assert!(guard.unlock().await.unwrap());
    bucket.reset("a").await.unwrap();
    assert!(bucket.allow("b").await.unwrap().is_admitted(), "there is room");
}

#[tokio::test(start_paused = true)]
async fn keys_whose_time_is_over_make_room() {
    let store = bounded(1);
    let bucket =
        tower_distributed::TokenBucket::new(&store, "quick", tower_distributed::Quota::per_second(1))
            .unwrap();
    for key in 0..100 {
        assert!(bucket.allow(key).await.unwrap().is_admitted());
        assert!(bucket.allow(key + 1).await.unwrap_err().is_overloaded());
        tokio::time::advance(Duration::from_millis(1001)).await;
    }
}

#[test]
fn bad_bounds_are_named() {
    let error = Store::builder().max_keys(0).in_memory().unwrap_err();
    assert!(error.is_invalid());
    assert_eq!(error.to_string(), "max_keys must be 1 or more, is 0");
    for store in
        [Store::builder().max_bytes(65_535).in_memory(), Store::builder().max_bytes(1).redis("redis://a")]
    {
        assert!(store.unwrap_err().to_string().starts_with("max_bytes must be 65536 or more, is "));
    }
    let error = Store::builder().max_keys(0).redis("redis://127.0.0.1:1").unwrap_err();
    assert_eq!(error.to_string(), "max_keys must be 1 or more, is 0");
}

/// In an outage, the local share takes no more keys and bytes than the builder allows. What is there goes on.
#[tokio::test]
async fn a_local_share_takes_no_new_key_beyond_its_bounds() {
    const SHARE: StoreFailure = StoreFailure::LocalShare { replicas: NonZeroU32::MIN };
    let away = |store: StoreBuilder| store.redis("redis://127.0.0.1:1").unwrap();
    for store in [away(Store::builder().max_keys(20)), away(Store::builder().max_bytes(1 << 16))] {
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
        let waits = limited.layer(Probe::default()).oneshot(0).await.unwrap_err();
        assert_eq!(waits.downcast::<Refusal>().unwrap().kind(), RefusalKind::NoPermit, "the permit is held");
    }
}

#[cfg(feature = "http")]
#[tokio::test]
async fn over_http_it_is_503() {
    use tower_distributed::Reject as _;
    let refusal = refused(RateLimitLayer::new(at_most(9, &full().await), by_request)).await;
    let refuse = tower_distributed::response::refuse();
    let response: Result<http::Response<String>, Infallible> = refuse.reject(refusal);
    let response = response.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    assert!(response.body().contains("Temporarily reduced capacity"), "{response:?}");
    assert!(!response.body().contains("max_keys"), "{response:?}");
}

#[cfg(feature = "tonic")]
#[tokio::test]
async fn over_grpc_it_is_unavailable() {
    use tonic_types::StatusExt as _;
    let refusal = refused(RateLimitLayer::new(at_most(9, &full().await), by_request)).await;
    let status = tower_distributed::grpc::status(&refusal);
    assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, "rate limits are overloaded"));
    let retry = status.get_details_retry_info().unwrap();
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(1)));
}
