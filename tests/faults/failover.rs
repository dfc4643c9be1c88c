//! Sentinel names another master.

use std::time::Duration;

use deadpool_redis::Runtime;
use deadpool_redis::sentinel::{Config, SentinelServerType};
use tower_distributed::{Mutex, MutexGuard, Quota, Store, TokenBucket};

use support::eventually;
use support::program::since_7_0;
use support::requires;
use support::sentinel::Sentinel;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_store_follows_the_master() {
    requires!(since_7_0());
    let sentinel = Sentinel::start().await;
    let name = sentinel.service_name().to_owned();
    let pool = Config::from_urls(
        sentinel.sentinel_urls(),
        name.clone(),
        SentinelServerType::Master,
    )
    .create_pool(Some(Runtime::Tokio1))
    .unwrap();
    let by_urls = Store::builder()
        .sentinel(sentinel.sentinel_urls(), &name)
        .unwrap();
    let bucket = |store: &Store| {
        TokenBucket::new(store, "failover", Quota::per_hour(1).burst(1000)).unwrap()
    };
    let buckets = [bucket(&Store::from(pool)), bucket(&by_urls)];
    let are_served = async || {
        let outcomes =
            futures::future::join_all(buckets.iter().map(|bucket| bucket.allow("k"))).await;
        outcomes.iter().all(Result::is_ok)
    };
    assert!(are_served().await);
    let old = sentinel.master().port();
    sentinel.failover().await;
    eventually(
        "the new master to be used",
        Duration::from_secs(30),
        async || {
            are_served().await
                && sentinel.master().query(&["EXISTS", "td:{failover:k}:tat"]) == Ok(1)
        },
    )
    .await;
    assert_ne!(sentinel.master().port(), old);
    sentinel.settled().await;
    sentinel.kill_master().await;
    eventually(
        "the next master to be used",
        Duration::from_secs(30),
        async || are_served().await,
    )
    .await;
}

/// A mutex in another process, whose locks count once the replica has them.
fn durable(sentinel: &Sentinel) -> Mutex {
    let builder = Store::builder()
        .timeout(SOON)
        .replicas(1, Duration::from_secs(1));
    Mutex::new(&builder.redis(&sentinel.master().url()).unwrap(), "x").unwrap()
}

/// A lock, once the replica is in step.
async fn locked(mutex: &Mutex) -> MutexGuard {
    let mut guard = None;
    eventually("the replica to be in step", SOON, async || {
        guard = mutex.try_lock("k").await.ok();
        guard.is_some()
    })
    .await;
    guard.unwrap()
}

async fn one_waits(sentinel: &Sentinel) {
    let waiting = async || sentinel.master().query(&["ZCARD", "td:{x:k}:waiters"]) == Ok(1);
    eventually("it to wait", SOON, waiting).await;
}

/// What replicas do not have does not count, and is released.
#[tokio::test]
async fn a_lock_that_no_replica_has_is_refused_and_released() {
    requires!(since_7_0());
    let sentinel = Sentinel::start().await;
    let (mutex, other) = (durable(&sentinel), durable(&sentinel));
    let guard = locked(&mutex).await;
    // A waiter of another process gets it by a message.
    let waiter = tokio::spawn(async move { other.lock("k").await.unwrap() });
    one_waits(&sentinel).await;
    assert!(guard.unlock().await.unwrap());
    let guard = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
    assert!(guard.is_held() && guard.unlock().await.unwrap());

    sentinel.replica().pause();
    let error = mutex.lock("k").await.unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("0 of 1 replicas"),
        "{error}"
    );
    let others = Mutex::new(&Store::redis(&sentinel.master().url()).unwrap(), "x").unwrap();
    eventually("it to be released", SOON, async || {
        others.try_lock("k").await.is_ok()
    })
    .await;
    sentinel.replica().resume();
    eventually("the replica to be in step", SOON, async || {
        mutex.try_lock("k").await.is_ok()
    })
    .await;
}

/// The reply to the release says who has the lock now. That no replica has the release does not concern the waiter: it
/// asks for itself.
#[tokio::test]
async fn a_waiter_beside_a_release_that_no_replica_has_is_woken() {
    requires!(since_7_0());
    let sentinel = Sentinel::start().await;
    let within = Duration::from_millis(500);
    let store = Store::builder()
        .timeout(SOON)
        .replicas(1, within)
        .redis(&sentinel.master().url())
        .unwrap();
    // Each waiter has its own place, so the lock goes through the store.
    let mutex = Mutex::builder().strict_fifo().build(&store, "x").unwrap();
    let guard = locked(&mutex).await;
    let waiting = mutex.clone();
    let waiter = tokio::spawn(async move { waiting.lock("k").await.unwrap() });
    one_waits(&sentinel).await;
    sentinel.replica().pause();
    let unlocked = guard.unlock().await;
    sentinel.replica().resume();
    assert!(
        unlocked
            .unwrap_err()
            .to_string()
            .contains("0 of 1 replicas")
    );
    let guard = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
}
