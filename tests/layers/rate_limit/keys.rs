//! Keys that are looked up, and extractors that fail, in every layer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tower::{BoxError, Layer, Service, ServiceExt as _, service_fn};
use tower_distributed::extract::look_up;
use tower_distributed::{
    ConcurrencyLimitLayer, Dedupe, DedupeLayer, Error, Key, Mutex, MutexLayer, Quota, RateLimitLayer,
    Refusal, RefusalKind, RwLock, RwLockLayer, SingleFlight, SingleFlightLayer, Store, TokenBucket,
    WaitGroup,
};

use crate::stores::{Stores, on_each_store};

on_each_store!(looked_up_keys_are_those_of_others, without_a_key_requests_pass_and_failures_refuse);

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

/// Runs a block for each layer, with its key at once and looked up; `$calls` counts what reaches the inner service.
macro_rules! on_each_layer {
    ($stores:expr, |$service:ident, $calls:ident, $what:ident| $block:block) => {
        on_each_layer!(@how $stores, now, "at once", |$service, $calls, $what| $block);
        on_each_layer!(@how $stores, look_up(later), "looked up", |$service, $calls, $what| $block);
    };
    (@how $stores:expr, $by:expr, $how:literal, |$service:ident, $calls:ident, $what:ident| $block:block) => {{
        let store = $stores.open();
        let bucket = TokenBucket::new(&store, "keys", Quota::per_hour(1)).unwrap();
        on_each_layer!(@one RateLimitLayer::new(bucket, $by), concat!("rate limit, ", $how), |$service, $calls, $what| $block);
        let group = WaitGroup::new(&store, "keys", 1).unwrap();
        on_each_layer!(@one ConcurrencyLimitLayer::new(group, $by), concat!("permits, ", $how), |$service, $calls, $what| $block);
        let mutex = Mutex::new(&store, "keys").unwrap();
        on_each_layer!(@one MutexLayer::new(mutex, $by), concat!("mutex, ", $how), |$service, $calls, $what| $block);
        let lock = RwLock::new(&store, "keys").unwrap();
        on_each_layer!(@one RwLockLayer::new(lock, $by), concat!("locks, ", $how), |$service, $calls, $what| $block);
        let dedupe = Dedupe::exact(&store, "keys").remember_for(Duration::from_secs(60)).build().unwrap();
        on_each_layer!(@one DedupeLayer::new(dedupe, $by), concat!("dedupe, ", $how), |$service, $calls, $what| $block);
        #[cfg(feature = "postcard")]
        {
            let flight = SingleFlight::<String>::new(&store, "keys").unwrap();
            on_each_layer!(@one SingleFlightLayer::new(flight, $by), concat!("flights, ", $how), |$service, $calls, $what| $block);
        }
    }};
    (@one $layer:expr, $name:expr, |$service:ident, $calls:ident, $what:ident| $block:block) => {{
        let $calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&$calls);
        let $what = $name;
        let $service = $layer.layer(service_fn(move |name: String| {
            counter.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, Infallible>(name) }
        }));
        $block
    }};
}

async fn ask<S>(service: &S, name: &str) -> Result<String, BoxError>
where
    S: Service<String, Response = String, Error = BoxError> + Clone,
{
    service.clone().oneshot(name.to_owned()).await
}

async fn looked_up_keys_are_those_of_others(stores: Stores) {
    let mut admitted = 0;
    on_each_layer!(stores, |service, calls, what| {
        let first = ask(&service, "ann").await;
        let second = ask(&service, "ann").await;
        // Those whose state outlives a request know the key from the same layer with the other kind of extractor.
        if let Ok(first) = first {
            admitted += 1;
            assert_eq!(first, "ann", "{what}");
        }
        let refuses = what.starts_with("rate limit") || what.starts_with("dedupe");
        assert_eq!(second.is_err(), refuses, "{what}");
        assert!(calls.load(Ordering::SeqCst) <= 2, "{what}");
    });
    // Rate limit and deduplication refuse what the extractor that was at once has used up.
    assert_eq!(admitted, if cfg!(feature = "postcard") { 10 } else { 8 });
}

async fn without_a_key_requests_pass_and_failures_refuse(stores: Stores) {
    on_each_layer!(stores, |service, calls, what| {
        for _ in 0..3 {
            assert_eq!(ask(&service, "none").await.unwrap(), "none", "{what}");
        }
        assert_eq!(calls.swap(0, Ordering::SeqCst), 3, "{what}");
        for (name, kind, text) in [
            ("broken", RefusalKind::BadRequest, "cannot be read"),
            ("away", RefusalKind::LookUpFailed, "database is away"),
        ] {
            let error = ask(&service, name).await.unwrap_err();
            let refusal = error.downcast_ref::<Refusal>().unwrap();
            assert_eq!(refusal.kind(), kind, "{what}");
            assert!(refusal.to_string().contains(text), "{what}: {refusal}");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 0, "{what}");
    });
}

#[tokio::test]
async fn in_shadow_mode_a_failure_passes() {
    let bucket = TokenBucket::new(&Store::in_memory(), "keys", Quota::per_hour(1)).unwrap();
    let inner = service_fn(async |name: String| Ok::<_, Infallible>(name));
    let at_once = RateLimitLayer::new(bucket.clone(), now).shadow().layer(inner);
    let looked_up = RateLimitLayer::new(bucket, look_up(later)).shadow().layer(inner);
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
    let inner = service_fn(async |name: String| Ok::<_, Infallible>(name));
    let service = RateLimitLayer::new(bucket, now).quotas(quotas).layer(inner);
    ask(&service, "none").await.unwrap();
    ask(&service, "broken").await.unwrap_err();
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    ask(&service, "ann").await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
