//! A bounded queue: beyond it calls are refused as overloaded, at once, and that is no outage.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::poll;
use tower::{Service, ServiceExt, service_fn};
use tower_distributed::token_bucket::Decision;
use tower_distributed::{
    Error, Quota, RateLimitLayer, Refusal, RefusalKind, Store, StoreFailure, TokenBucket,
};
use tower_layer::Layer;

use crate::scene::{CALL, MACHINE, RECOVERY, is_served, long_locks, wide_bucket};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::slow_proxy::SlowProxy;

/// So slow that a burst is still in the queue when all of it has been asked for.
const SLOW: Duration = Duration::from_millis(50);

const BOUND: usize = 500;

/// Operations that may be in flight beside those that wait: a few batches.
const UNDER_WAY: usize = 4 * 1024;

/// Above both together.
const BURST: usize = 3 * (BOUND + UNDER_WAY);

type Call = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>;

/// Polls each call once. Returns those that are pending, and the errors of those that were refused at once.
async fn ask(bucket: &TokenBucket, calls: usize, key: impl Fn(usize) -> String) -> (Vec<Call>, Vec<Error>) {
    let (mut pending, mut refused) = (Vec::new(), Vec::new());
    for number in 0..calls {
        let (bucket, key) = (bucket.clone(), key(number));
        let mut call: Call = Box::pin(async move { bucket.allow(key).await });
        match poll!(call.as_mut()) {
            std::task::Poll::Ready(outcome) => refused.push(outcome.unwrap_err()),
            std::task::Poll::Pending => pending.push(call),
        }
    }
    (pending, refused)
}

fn assert_all_overloaded(errors: &[Error]) {
    for error in errors {
        assert!(error.is_overloaded() && !error.is_unavailable() && !error.is_refused(), "{error}");
        assert!(error.retry_after().is_some(), "nothing is said of when to come back: {error}");
    }
}

#[test]
fn bounds_are_checked_when_a_store_is_built() {
    for builder in [Store::builder().max_queued(0), Store::builder().max_queued_bytes(0)] {
        assert!(builder.redis("redis://127.0.0.1/").unwrap_err().is_invalid());
    }
}

#[tokio::test]
async fn calls_beyond_the_bound_are_refused_at_once_and_the_others_served() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let bucket = wide_bucket(&Store::builder().max_queued(BOUND).redis(&proxy.url()).unwrap());
    assert!(is_served(&bucket.allow("warm").await));
    for _ in 0..3 {
        let (pending, refused) = ask(&bucket, BURST, |key| key.to_string()).await;
        assert!(pending.len() <= BOUND + UNDER_WAY, "{} of {BURST} were taken", pending.len());
        assert!(pending.len() >= BOUND, "{} of {BURST} were taken", pending.len());
        assert_all_overloaded(&refused);
        let failed: Vec<_> = join_all(pending).await.into_iter().filter_map(Result::err).collect();
        assert!(failed.is_empty(), "{} that were taken failed, the first: {}", failed.len(), failed[0]);
        // The breaker has not counted the refusals.
        let began = Instant::now();
        assert!(is_served(&bucket.allow("next").await));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn calls_are_also_bounded_by_their_bytes() {
    const KEY: usize = 16 * 1024;
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let store = Store::builder().max_queued_bytes(20 * KEY).redis(&proxy.url()).unwrap();
    let bucket = wide_bucket(&store);
    assert!(is_served(&bucket.allow("warm").await));
    // Far fewer than any bound of their number.
    let (pending, refused) = ask(&bucket, 2_000, |key| format!("{key:0KEY$}")).await;
    assert!(!refused.is_empty(), "{} keys of {KEY} bytes were taken", pending.len());
    assert_all_overloaded(&refused);
    assert!(join_all(pending).await.iter().all(is_served));
}

/// An overloaded store is not an outage: fail open does not apply.
#[tokio::test]
async fn fail_open_does_not_admit_overloaded_requests() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let store = Store::builder().max_queued(BOUND).redis(&proxy.url()).unwrap();
    let bucket = TokenBucket::new(&store, "limit", Quota::per_hour(1)).unwrap();
    // Its token is used up, so that all that pass have passed undecided.
    bucket.allow("client").await.unwrap();
    let passed = Arc::new(AtomicUsize::new(0));
    let inner = {
        let passed = passed.clone();
        service_fn(move |_: usize| {
            passed.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok::<_, std::io::Error>(None))
        })
    };
    let layer = RateLimitLayer::new(bucket.clone(), |_: &usize| "client")
        .on_store_failure(StoreFailure::FailOpen)
        .reject_with(|refusal: Refusal| Some(refusal.kind()));
    let service = layer.layer(inner);
    // The queue is full of others' calls.
    let (pending, _) = ask(&bucket, BURST, |key| key.to_string()).await;
    let calls = (0..100).map(|number| {
        let mut service = service.clone();
        async move { service.ready().await.unwrap().call(number).await.unwrap() }
    });
    let kinds = join_all(calls).await;
    let overloaded = kinds.iter().filter(|kind| **kind == Some(RefusalKind::Overloaded)).count();
    assert_eq!(passed.load(Ordering::Relaxed), 0, "requests passed undecided");
    assert!(overloaded > 0, "{kinds:?}");
    drop(pending);
}

#[cfg(feature = "http")]
#[tokio::test]
async fn overload_is_a_503_with_retry_after() {
    use tower_distributed::response::refuse;

    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let bucket = wide_bucket(&Store::builder().max_queued(BOUND).redis(&proxy.url()).unwrap());
    assert!(is_served(&bucket.allow("warm").await));
    let layer = RateLimitLayer::new(bucket.clone(), |_: &()| "k").reject_with(refuse());
    let inner =
        service_fn(async |(): ()| Ok::<_, std::convert::Infallible>(http::Response::new(String::new())));
    let mut service = layer.layer(inner);
    let (pending, refused) = ask(&bucket, BURST, |key| key.to_string()).await;
    assert_all_overloaded(&refused);
    let response = service.ready().await.unwrap().call(()).await.unwrap();
    assert_eq!(response.status(), http::StatusCode::SERVICE_UNAVAILABLE);
    let after: u64 = response.headers()[http::header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&after), "Retry-After: {after}");
    drop(pending);
}

/// A full queue before a server that has answered nothing for a time-out is an outage, and reaches fail open.
#[tokio::test]
async fn a_full_queue_before_a_stalled_server_is_an_outage() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let timeout = Duration::from_millis(300);
    let store = Store::builder().timeout(timeout).max_queued(BOUND).redis(&proxy.url()).unwrap();
    let bucket = wide_bucket(&store);
    assert!(is_served(&bucket.allow("warm").await));
    proxy.stall();
    let stalled = Instant::now();
    let (pending, _) = ask(&bucket, BURST, |key| key.to_string()).await;
    eventually("a time-out to pass", RECOVERY, async || stalled.elapsed() > 2 * timeout).await;
    let (more, refused) = ask(&bucket, BURST, |key| key.to_string()).await;
    assert!(!refused.is_empty() || !more.is_empty());
    for error in &refused {
        assert!(error.is_unavailable() && !error.is_overloaded(), "{error}");
    }
    let all = tokio::time::timeout(CALL, join_all(pending.into_iter().chain(more))).await;
    assert!(all.expect("calls hang").iter().all(Result::is_err));
    proxy.heal();
    eventually("an answer after the stall", RECOVERY, async || is_served(&bucket.allow("k").await)).await;
}

/// Releases and extensions have a reserved queue.
#[tokio::test]
async fn releases_are_never_refused() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let store = Store::builder().max_queued(BOUND).redis(&proxy.url()).unwrap();
    let (bucket, mutex) = (wide_bucket(&store), long_locks(&store));
    let locks = join_all((0..100).map(|key| mutex.lock(key))).await;
    let mut guards: Vec<_> = locks.into_iter().map(Result::unwrap).collect();
    let (pending, refused) = ask(&bucket, BURST, |key| key.to_string()).await;
    assert!(!refused.is_empty(), "the queue is not full");
    let last = guards.pop().unwrap();
    let began = Instant::now();
    for extended in join_all(guards.iter().map(|guard| guard.extend())).await {
        extended.unwrap();
    }
    for released in join_all(guards.into_iter().map(|guard| guard.unlock())).await {
        assert!(released.unwrap());
    }
    // They went before what waits: a batch under way, and theirs.
    assert!(began.elapsed() < 20 * SLOW, "{:?}", began.elapsed());
    drop(last);
    drop(pending);
    eventually("the dropped lock to be free", RECOVERY, async || mutex.try_lock(99).await.is_ok()).await;
}

/// An acquire is not reserved, as a release is.
#[tokio::test]
async fn acquires_beyond_the_bound_are_refused() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let mutex = long_locks(&Store::builder().max_queued(BOUND).redis(&proxy.url()).unwrap());
    assert!(mutex.try_lock("warm").await.unwrap().unlock().await.unwrap());
    let locks = join_all((0..BURST).map(|key| mutex.try_lock(key))).await;
    let refused: Vec<_> = locks.into_iter().filter_map(Result::err).collect();
    assert!(refused.len() >= BURST - BOUND - UNDER_WAY, "{} of {BURST} were refused", refused.len());
    assert_all_overloaded(&refused);
}

/// After a pause of its runtime, a call does not join those that have waited for long, which are refused soon.
#[tokio::test]
async fn a_call_after_a_pause_of_its_runtime_waits_for_its_own_time() {
    const QUEUE: Duration = Duration::from_millis(2500);
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let builder = Store::builder().timeout(Duration::from_secs(5)).queue_timeout(QUEUE);
    let bucket = wide_bucket(&builder.redis(&server.url()).unwrap());
    assert!(is_served(&bucket.allow("warm").await));
    // The first is sent, the others wait.
    let (old, _) = ask(&bucket, 3, |key| format!("old {key}")).await;
    thread::sleep(QUEUE * 6 / 10);
    let (new, _) = ask(&bucket, 1, |key| format!("new {key}")).await;
    thread::sleep(QUEUE * 6 / 10);
    let (old, new) = (join_all(old).await, join_all(new).await);
    assert!(old[1..].iter().all(|outcome| outcome.as_ref().is_err_and(Error::is_overloaded)), "{old:?}");
    assert!(is_served(&new[0]), "{new:?}");
}
