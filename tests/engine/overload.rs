//! Too many calls on a healthy Redis are no outage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tower::{Service, ServiceExt, service_fn};
use tower_distributed::{Mutex, Quota, RateLimitLayer, RefusalKind, Store, StoreFailure, TokenBucket};
use tower_layer::Layer;

use crate::scene::{MACHINE, is_served, wide_bucket};
use support::patient;
use support::redis_server::RedisServer;

/// Far more than Redis decides within a time-out in a build without optimisation.
const BURST: usize = 60_000;

/// Makes all calls at the same time, a thousand in each task: the tasks then have little to do but the calls.
async fn at_once<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let (mut calls, mut tasks) = (calls.into_iter(), Vec::new());
    loop {
        let some: Vec<_> = calls.by_ref().take(1_000).collect();
        if some.is_empty() {
            break;
        }
        tasks.push(tokio::spawn(join_all(some)));
    }
    join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect()
}

/// Defect 3: calls late in a burst failed as unavailable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_unique_keys_is_no_outage() {
    let server = RedisServer::start().await;
    let _turn = MACHINE.write().await;
    let bucket = wide_bucket(&patient!(server.url()));
    assert!(is_served(&bucket.allow("warm").await));
    let calls = (0..BURST).map(|key| {
        let bucket = bucket.clone();
        async move { bucket.allow(key as u64).await }
    });
    let outcomes = at_once(calls).await;
    let ended = Instant::now();
    let next = bucket.allow("next").await;
    assert!(is_served(&next), "the first call after the burst: {next:?}");
    assert!(ended.elapsed() < Duration::from_secs(1), "{:?}", ended.elapsed());

    let away =
        outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).filter(|error| error.is_unavailable());
    let away: Vec<_> = away.collect();
    assert!(away.is_empty(), "{} of {BURST} were told an outage, the first: {}", away.len(), away[0]);
    // Refusing everybody would not do.
    let served = outcomes.iter().filter(|outcome| is_served(outcome)).count();
    assert!(served >= 1_000, "{served} of {BURST} served");
}

struct Request {
    key: u64,
    decided: bool,
}

/// Defect 3: unique keys switched a limit off that fails open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_unique_keys_does_not_disable_a_limit_that_fails_open() {
    let server = RedisServer::start().await;
    let _turn = MACHINE.write().await;
    let store = patient!(server.url());
    let bucket = TokenBucket::new(&store, "limit", Quota::per_hour(1)).unwrap();
    let (undecided, admitted) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let inner = {
        let (undecided, admitted) = (undecided.clone(), admitted.clone());
        service_fn(move |request: Request| {
            undecided.fetch_add(usize::from(!request.decided), Ordering::Relaxed);
            admitted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok::<_, std::io::Error>(()))
        })
    };
    let layer = RateLimitLayer::new(bucket, |request: &Request| request.key)
        .on_store_failure(StoreFailure::FailOpen)
        .on_admit(|_: &_, request: &mut Request| request.decided = true)
        .reject_with(|_: tower_distributed::Refusal| ());
    let service = layer.layer(inner);
    let call = |key| {
        let mut service = service.clone();
        async move { service.ready().await.unwrap().call(Request { key, decided: false }).await.unwrap() }
    };
    // A client that has used its token up.
    let client = u64::MAX;
    call(client).await;
    assert_eq!(admitted.load(Ordering::Relaxed), 1);

    at_once((0..BURST as u64).chain(std::iter::repeat_n(client, 100)).map(call)).await;
    let (undecided, all) = (undecided.load(Ordering::Relaxed), admitted.load(Ordering::Relaxed));
    assert_eq!(undecided, 0, "of {BURST} requests so many passed without a decision ({all} passed)");
    // The client is still refused.
    call(client).await;
    assert_eq!(admitted.load(Ordering::Relaxed), all, "the client was let through after the burst");
}

/// Renewals are sent before the calls of a burst.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlive_a_burst() {
    let server = RedisServer::start().await;
    let _turn = MACHINE.write().await;
    let store = patient!(server.url());
    let mutex = Mutex::builder().ttl(Duration::from_millis(1_500)).build(&store, "held").unwrap();
    let guards = join_all((0..100).map(|key| mutex.lock(key))).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let taken: Vec<_> = guards.iter().map(|guard| guard.until()).collect();

    let bucket = wide_bucket(&store);
    let began = Instant::now();
    let mut key = 0_u64;
    // Bursts behind each other, until the leases would have ended.
    while began.elapsed() < Duration::from_millis(2_500) {
        let calls = (0..BURST / 3).map(|_| {
            key += 1;
            let (bucket, key) = (bucket.clone(), key);
            async move { drop(bucket.allow(key).await) }
        });
        at_once(calls).await;
    }
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    assert_eq!(lost, 0, "of {} leases so many were lost", guards.len());
    assert!(guards.iter().zip(taken).all(|(guard, taken)| guard.until() > taken), "no renewal was made");
    for guard in guards {
        assert!(guard.unlock().await.unwrap());
    }
}

/// Defect 3, through a layer: no request is refused as `StoreUnavailable`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_through_a_layer_that_fails_closed_is_no_outage() {
    let server = RedisServer::start().await;
    let _turn = MACHINE.write().await;
    let bucket = wide_bucket(&patient!(server.url()));
    let layer = RateLimitLayer::new(bucket, |key: &u64| *key)
        .reject_with(|refusal: tower_distributed::Refusal| Some(refusal.kind()));
    let service = layer.layer(service_fn(async |_: u64| Ok::<_, std::io::Error>(None)));
    let calls = (0..BURST as u64).map(|key| {
        let mut service = service.clone();
        async move { service.ready().await.unwrap().call(key).await.unwrap() }
    });
    let kinds: Vec<_> = at_once(calls).await.into_iter().flatten().collect();
    let away = kinds.iter().filter(|kind| **kind == RefusalKind::StoreUnavailable).count();
    assert_eq!(away, 0, "of {BURST} requests so many were told an outage ({} were refused)", kinds.len());
}
