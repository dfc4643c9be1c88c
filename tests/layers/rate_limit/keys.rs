//! Keys that are looked up, and extractors that fail, in every layer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tower::{BoxError, Layer as _, ServiceExt as _};
use tower_distributed::extract::look_up;
use tower_distributed::{
    ConcurrencyLimitLayer, Dedupe, DedupeLayer, Error, Key, KeyExtractor, MutexLayer, Quota,
    RateLimitLayer, Refusal, RefusalKind, RwLockLayer, SingleFlightLayer, Store, TokenBucket,
};

use crate::contract::subjects::{Service, boxed};
use crate::families::{locks, mutexes, permits};
use crate::flights::{build, builder};
use crate::probe::Probe;
use crate::stores::{Stores, on_each_store};

on_each_store!(
    looked_up_keys_are_those_of_others,
    without_a_key_requests_pass_and_failures_refuse
);

/// What a request is: the name of its key; `none` has none, `broken` fails.
fn find(name: &str) -> Result<Option<Key>, Error> {
    match name {
        "none" => Ok(None),
        "broken" => Err(Error::bad_request("the key cannot be read")),
        "away" => Err(Error::look_up_failed("the key's database is away")),
        name => Ok(Some(name.into())),
    }
}

/// At once, or after a while.
#[allow(clippy::ptr_arg, reason = "the request is a String")]
fn now(name: &String) -> Result<Option<Key>, Error> {
    find(name)
}

#[allow(clippy::ptr_arg, reason = "the request is a String")]
fn later(name: &String) -> impl Future<Output = Result<Option<Key>, Error>> + Send + use<> {
    let name = name.clone();
    async move {
        tokio::task::yield_now().await;
        find(&name)
    }
}

/// Each layer around the probe.
fn around<K>(store: &Store, probe: &Probe, key: fn() -> K) -> [(&'static str, Service); 6]
where
    K: KeyExtractor<String> + Send + Sync + 'static,
{
    let bucket = TokenBucket::new(store, "keys", Quota::per_hour(1)).unwrap();
    let dedupe = Dedupe::exact(store, "keys")
        .remember_for(Duration::from_secs(60))
        .build()
        .unwrap();
    let flight = build::<Infallible>(builder(), store);
    let probe = || probe.clone();
    [
        (
            "rate limit",
            boxed(RateLimitLayer::new(bucket, key()).layer(probe())),
        ),
        (
            "permits",
            boxed(ConcurrencyLimitLayer::new(permits(store, 1), key()).layer(probe())),
        ),
        (
            "mutex",
            boxed(MutexLayer::new(mutexes(store), key()).layer(probe())),
        ),
        (
            "locks",
            boxed(RwLockLayer::new(locks(store), key()).layer(probe())),
        ),
        (
            "dedupe",
            boxed(DedupeLayer::new(dedupe, key()).layer(probe())),
        ),
        (
            "flights",
            boxed(SingleFlightLayer::new(flight, key()).layer(probe())),
        ),
    ]
}

/// With its key at once, and looked up.
fn both(stores: &Stores, probe: &Probe) -> Vec<(&'static str, Service)> {
    let store = stores.open();
    [
        around(&store, probe, || now),
        around(&store, probe, || look_up(later)),
    ]
    .concat()
}

async fn ask<S>(service: &S, name: &str) -> Result<String, BoxError>
where
    S: tower::Service<String, Response = String, Error = BoxError> + Clone,
{
    service.clone().oneshot(name.to_owned()).await
}

async fn looked_up_keys_are_those_of_others(stores: Stores) {
    let (probe, mut admitted) = (Probe::default(), 0);
    for (what, service) in both(&stores, &probe) {
        let first = ask(&service, "ann").await;
        let second = ask(&service, "ann").await;
        // Those whose state outlives a request know the key from the same layer with the other kind of extractor.
        if let Ok(first) = first {
            admitted += 1;
            assert_eq!(first, "ann", "{what}");
        }
        assert_eq!(
            second.is_err(),
            ["rate limit", "dedupe"].contains(&what),
            "{what}"
        );
    }
    // Rate limit and deduplication refuse what the extractor that was at once has used up.
    assert_eq!(admitted, 10);
}

async fn without_a_key_requests_pass_and_failures_refuse(stores: Stores) {
    let probe = Probe::default();
    for (what, service) in both(&stores, &probe) {
        let before = probe.calls();
        for _ in 0..3 {
            assert_eq!(ask(&service, "none").await.unwrap(), "none", "{what}");
        }
        for (name, kind, text) in [
            ("broken", RefusalKind::BadRequest, "cannot be read"),
            ("away", RefusalKind::LookUpFailed, "database is away"),
        ] {
            let error = ask(&service, name).await.unwrap_err();
            let refusal = error.downcast_ref::<Refusal>().unwrap();
            assert_eq!(refusal.kind(), kind, "{what}");
            assert!(refusal.to_string().contains(text), "{what}: {refusal}");
        }
        assert_eq!(probe.calls(), before + 3, "{what}");
    }
}

#[tokio::test]
async fn in_shadow_mode_a_failure_passes() {
    let bucket = TokenBucket::new(&Store::in_memory(), "keys", Quota::per_hour(1)).unwrap();
    let at_once = RateLimitLayer::new(bucket.clone(), now)
        .shadow()
        .layer(Probe::default());
    let looked_up = RateLimitLayer::new(bucket, look_up(later))
        .shadow()
        .layer(Probe::default());
    assert_eq!(ask(&at_once, "broken").await.unwrap(), "broken");
    assert_eq!(ask(&looked_up, "broken").await.unwrap(), "broken");
}

#[tokio::test]
async fn quotas_are_looked_up_only_for_requests_with_a_key() {
    let bucket = TokenBucket::new(&Store::in_memory(), "keys", Quota::per_hour(1)).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let quotas = move |_: &String| {
        counter.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(None))
    };
    let service = RateLimitLayer::new(bucket, now)
        .quotas(quotas)
        .layer(Probe::default());
    ask(&service, "none").await.unwrap();
    ask(&service, "broken").await.unwrap_err();
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    ask(&service, "ann").await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
