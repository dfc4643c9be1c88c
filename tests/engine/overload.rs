//! Too many calls on a healthy Redis are no outage. Beyond the bounds of the queue they are refused as overloaded, at once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tower::{Service, ServiceExt, service_fn};
use tower_distributed::token_bucket::Decision;
use tower_distributed::{
    Error, Quota, RateLimitLayer, Refusal, RefusalKind, Store, StoreBuilder, StoreFailure,
    TokenBucket,
};
use tower_layer::Layer;

use crate::scene::{SOON, is_served, long_locks, open, wide_bucket};
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::{eventually, patient};

/// Far more than Redis decides within a default time-out in a build without optimisation.
const CROWD: usize = 60_000;

struct Request {
    key: u64,
    decided: bool,
}

/// Defect 3: calls late in a burst failed as unavailable, so unique keys switched a limit off that fails open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_unique_keys_does_not_disable_a_limit_that_fails_open() {
    let server = RedisServer::start().await;
    let bucket = TokenBucket::new(&open(&server.url()), "limit", Quota::per_hour(1)).unwrap();
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
        .reject_with(|_: Refusal| ());
    let service = layer.layer(inner);
    let call = |key| {
        let mut service = service.clone();
        async move {
            service
                .ready()
                .await
                .unwrap()
                .call(Request {
                    key,
                    decided: false,
                })
                .await
                .unwrap()
        }
    };
    // A client that has used its token up.
    let client = u64::MAX;
    call(client).await;
    assert_eq!(admitted.load(Ordering::Relaxed), 1);
    // A thousand in each task: the tasks then have little to do but the calls.
    let keys: Vec<_> = (0..CROWD as u64)
        .chain(std::iter::repeat_n(client, 100))
        .collect();
    let crowd = keys
        .chunks(1_000)
        .map(|keys| tokio::spawn(join_all(keys.iter().copied().map(call))));
    assert!(
        join_all(crowd.collect::<Vec<_>>())
            .await
            .iter()
            .all(Result::is_ok)
    );
    let (undecided, all) = (
        undecided.load(Ordering::Relaxed),
        admitted.load(Ordering::Relaxed),
    );
    assert_eq!(
        undecided, 0,
        "of {CROWD} requests so many passed without a decision ({all} passed)"
    );
    // Refusing everybody would not do.
    assert!(all >= 1_000, "{all} of {CROWD} served");
    // The client is still refused.
    call(client).await;
    assert_eq!(
        admitted.load(Ordering::Relaxed),
        all,
        "the client was let through after the burst"
    );
}

/// So slow that a burst is still in the queue when all of it has been asked for.
const SLOW: Duration = Duration::from_millis(50);

const BOUND: usize = 500;

/// Operations that may be in flight beside those that wait: a few batches.
const UNDER_WAY: usize = 4 * 1024;

/// Above both together.
const BURST: usize = 3 * (BOUND + UNDER_WAY);

/// A slow server, and a store before it.
async fn slow(builder: StoreBuilder) -> (RedisServer, FaultProxy, Store) {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    proxy.delay_replies(SLOW);
    let store = builder.redis(&proxy.url()).unwrap();
    assert!(is_served(&wide_bucket(&store).allow("warm").await));
    (server, proxy, store)
}

type Call = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>;

/// Polls each call once. Returns those that are pending, and how many were refused at once, as overloaded.
async fn ask(
    bucket: &TokenBucket,
    calls: usize,
    key: impl Fn(usize) -> String,
) -> (Vec<Call>, usize) {
    let (mut pending, mut refused) = (Vec::new(), 0);
    for number in 0..calls {
        let (bucket, key) = (bucket.clone(), key(number));
        let mut call: Call = Box::pin(async move { bucket.allow(key).await });
        match poll!(call.as_mut()) {
            std::task::Poll::Pending => pending.push(call),
            std::task::Poll::Ready(outcome) => {
                is_overloaded(&outcome.unwrap_err());
                refused += 1;
            }
        }
    }
    (pending, refused)
}

fn is_overloaded(error: &Error) {
    assert!(
        error.is_overloaded() && !error.is_unavailable() && !error.is_refused(),
        "{error}"
    );
    assert!(
        error.retry_after().is_some(),
        "nothing is said of when to come back: {error}"
    );
}

/// No layer takes it for an outage, also one that fails open.
#[tokio::test]
async fn calls_beyond_the_bound_are_refused_at_once_and_the_others_served() {
    let (_server, _proxy, store) = slow(patient!().max_queued(BOUND)).await;
    let (bucket, limit) = (
        wide_bucket(&store),
        TokenBucket::new(&store, "limit", Quota::per_hour(1)).unwrap(),
    );
    // Its token is used up, so that all that pass have passed undecided.
    assert!(is_served(&limit.allow("client").await));
    let layer = RateLimitLayer::new(limit, |(): &()| "client").cache_refusals(false);
    let layer = layer.on_store_failure(StoreFailure::FailOpen);
    let layer = layer.reject_with(|refusal: Refusal| Some(refusal.kind()));
    let service = layer.layer(service_fn(async |(): ()| Ok::<_, std::io::Error>(None)));
    for _ in 0..3 {
        let (pending, _) = ask(&bucket, BURST, |key| key.to_string()).await;
        let taken = pending.len();
        assert!(
            (BOUND..=BOUND + UNDER_WAY).contains(&taken),
            "{taken} of {BURST} were taken"
        );
        let kinds = join_all((0..100).map(|_| service.clone().oneshot(()))).await;
        let kinds: Vec<_> = kinds
            .into_iter()
            .map(|kind| kind.unwrap().expect("it passed undecided"))
            .collect();
        assert!(kinds.contains(&RefusalKind::Overloaded), "{kinds:?}");
        let failed: Vec<_> = join_all(pending)
            .await
            .into_iter()
            .filter_map(Result::err)
            .collect();
        assert!(
            failed.is_empty(),
            "{} that were taken failed, the first: {}",
            failed.len(),
            failed[0]
        );
        // The breaker has not counted the refusals.
        assert!(is_served(&bucket.allow("next").await));
    }
}

#[tokio::test]
async fn calls_are_also_bounded_by_their_bytes() {
    const KEY: usize = 16 * 1024;
    let (_server, _proxy, store) = slow(patient!().max_queued_bytes(20 * KEY)).await;
    // Far fewer than any bound of their number.
    let (pending, refused) = ask(&wide_bucket(&store), 2_000, |key| format!("{key:0KEY$}")).await;
    assert!(
        refused > 0,
        "{} keys of {KEY} bytes were taken",
        pending.len()
    );
    assert!(join_all(pending).await.iter().all(is_served));
}

/// Releases and extensions have a reserved queue. Acquires do not.
#[tokio::test]
async fn releases_are_never_refused() {
    let (_server, _proxy, store) = slow(patient!().max_queued(BOUND)).await;
    let (bucket, mutex) = (wide_bucket(&store), long_locks(&store));
    let guards = join_all((0_u64..100).map(|key| mutex.lock(key))).await;
    let mut guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let mut waiting = Vec::new();
    // Nothing is sent before the next call is awaited.
    let mut fill = async || {
        let (pending, refused) = ask(&bucket, BURST, |key| key.to_string()).await;
        assert!(refused > 0, "the queue is not full");
        waiting.extend(pending);
    };
    fill().await;
    assert!(
        join_all(guards.iter().map(|guard| guard.extend()))
            .await
            .iter()
            .all(Result::is_ok)
    );
    let last = guards.pop().unwrap();
    fill().await;
    let released = join_all(guards.into_iter().map(|guard| guard.unlock())).await;
    assert!(released.into_iter().all(Result::unwrap));
    fill().await;
    drop(last);
    // One is sent at once, beside the queue.
    let locks = join_all((100_u64..110).map(|key| mutex.try_lock(key))).await;
    let refused: Vec<_> = locks.into_iter().filter_map(Result::err).collect();
    assert!(!refused.is_empty(), "acquires are not bounded");
    refused.iter().for_each(is_overloaded);
    assert!(join_all(waiting).await.iter().all(is_served));
    eventually("the dropped lock to be free", SOON, async || {
        mutex.try_lock(99_u64).await.is_ok()
    })
    .await;
}
