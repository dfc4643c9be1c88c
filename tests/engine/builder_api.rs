//! Settings of the engine, readiness, and a clean exit.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tower_distributed::operator::Operator;
use tower_distributed::{BreakerState, Mutex, Quota, Store, StoreStats, TokenBucket};

use crate::scene::{
    CALL, MACHINE, RECOVERY, connections, current_thread, is_free, is_served, long_locks, multi_thread,
    start_server, timed, wide_bucket,
};
use support::patient;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::{eventually, eventually_blocking, within};

const LIMIT: Duration = Duration::from_secs(40);
const URL: &str = "redis://127.0.0.1/";

#[test]
fn settings_are_checked_when_a_store_is_built() {
    for builder in [
        Store::builder().connect_timeout(Duration::ZERO),
        Store::builder().connect_timeout(Duration::MAX),
        Store::builder().queue_timeout(Duration::ZERO),
        Store::builder().queue_timeout(Duration::MAX),
    ] {
        assert!(builder.redis(URL).unwrap_err().is_invalid());
    }
}

/// A runtime of one thread may never run again.
#[test]
fn a_current_thread_runtime_is_refused_as_background() {
    let (one, many) = (current_thread(), multi_thread());
    let error = Store::builder().background(one.handle().clone()).redis(URL).unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert!(Store::builder().background(many.handle().clone()).redis(URL).is_ok());
}

#[test]
fn leases_are_renewed_and_released_on_the_background_runtime() {
    timed(LIMIT, start_server, |server| {
        let background = multi_thread();
        let store = Store::builder().background(background.handle().clone()).redis(&server.url()).unwrap();
        let ttl = Duration::from_millis(1_200);
        let mutex = Mutex::builder().ttl(ttl).build(&store, "locks").unwrap();
        let idle = current_thread();
        let guard = idle.block_on(mutex.lock("k")).unwrap();
        let first = guard.until();
        eventually_blocking("the lease to be renewed twice", RECOVERY, || guard.until() > first + ttl);
        idle.block_on(async { drop(guard) });
        eventually_blocking("the lock to be free", RECOVERY, || is_free(&server, "k"));
        assert!(is_served(&futures::executor::block_on(wide_bucket(&store).allow("k"))));
        // It may end before the store: then the store says so, or does without it.
        background.shutdown_background();
        let outcome = idle.block_on(async { tokio::time::timeout(CALL, mutex.lock("k")).await });
        outcome
            .expect("the call hangs")
            .map(drop)
            .or_else(|error| error.is_unavailable().then_some(()).ok_or(error))
            .unwrap();
    });
}

/// Connecting has a time-out of its own, so a time-out below its round trips does no harm.
#[tokio::test]
async fn connecting_may_take_longer_than_a_call() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    proxy.stall();
    let bucket = wide_bucket(&patient!().timeout(TIMEOUT).redis(&proxy.url()).unwrap());
    let calls = join_all((0..50).map(|key| bucket.allow(key)));
    let connects = async {
        // The connection is made only after the time of a call.
        tokio::time::sleep(TIMEOUT + TIMEOUT / 4).await;
        proxy.heal();
    };
    let (outcomes, ()) = tokio::join!(calls, connects);
    assert!(outcomes.iter().all(is_served), "{:?}", outcomes.iter().find(|outcome| !is_served(outcome)));
}

#[tokio::test]
async fn connecting_ends_within_its_time_out() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    proxy.stall();
    let limit = Duration::from_millis(300);
    let builder = Store::builder().timeout(Duration::from_secs(20)).connect_timeout(limit);
    let bucket = wide_bucket(&builder.redis(&proxy.url()).unwrap());
    let began = Instant::now();
    let outcome = tokio::time::timeout(Duration::from_secs(3), bucket.allow("k")).await;
    assert!(outcome.expect("connecting takes longer than its time-out").unwrap_err().is_unavailable());
    assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
    proxy.heal();
    eventually("an answer", RECOVERY, async || is_served(&bucket.allow("k").await)).await;
}

/// All that wait behind a call that is not answered are told within the sum of the bounds.
#[tokio::test]
async fn waiting_in_the_queue_ends_within_its_time_out() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let (timeout, queue) = (Duration::from_millis(1_500), Duration::from_millis(200));
    let bucket =
        wide_bucket(&Store::builder().timeout(timeout).queue_timeout(queue).redis(&proxy.url()).unwrap());
    assert!(is_served(&bucket.allow("warm").await));
    proxy.stall();
    let calls = join_all((0..3_000).map(|key| bucket.allow(key)));
    let outcomes = tokio::time::timeout(timeout + queue + Duration::from_secs(1), calls).await;
    for error in outcomes.expect("a call exceeds its bounds").into_iter().map(Result::unwrap_err) {
        assert!(error.is_unavailable() || error.is_overloaded(), "{error}");
    }
}

#[tokio::test]
async fn a_ping_tells_of_the_server() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    assert_eq!(store.stats().server_version, None, "not connected yet");
    let took = store.ping().await.unwrap();
    assert!(!took.is_zero() && took < Duration::from_secs(1));
    let stats = store.stats();
    let version = server.cli(&["INFO", "server"]);
    let version = |name| version.lines().find_map(|line| line.strip_prefix(name));
    assert_eq!(stats.server_version.as_deref(), version("valkey_version:").or(version("redis_version:")));
    assert_eq!(format!("{:?}", stats.breaker), "Closed");
}

/// A ping tells an outage, and its end, though nobody else makes a call.
#[tokio::test]
async fn a_ping_tells_of_outages() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    let bucket = wide_bucket(&store);
    assert!(is_served(&bucket.allow("k").await));
    server.kill9();
    // Until the breaker is open, and then some.
    for _ in 0..10 {
        assert!(bucket.allow("k").await.unwrap_err().is_unavailable());
    }
    assert_ne!(store.stats().breaker, BreakerState::Closed);
    let error = tokio::time::timeout(CALL, store.ping()).await.expect("the ping hangs").unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    server.restart().await;
    eventually("the ping to be answered", RECOVERY, async || store.ping().await.is_ok()).await;
    assert_eq!(store.stats().breaker, BreakerState::Closed);
    eventually("an answer", RECOVERY, async || is_served(&bucket.allow("k").await)).await;
}

/// Operations that wait, and those that have left, in fewer batches.
#[tokio::test]
async fn a_store_counts_what_it_sends() {
    const MANY: u64 = 1_000;
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    let bucket = wide_bucket(&store);
    assert!(is_served(&bucket.allow("warm").await));
    let stats = store.stats();
    assert_eq!((stats.queued, stats.operations, stats.batches), (0, 1, 1));
    let mut calls = pin!(join_all((0..MANY).map(|key| bucket.allow(key))));
    // The first call leaves at once. The others are sent by a task that has not run yet.
    assert!(futures::poll!(&mut calls).is_pending());
    assert_eq!(store.stats().queued, MANY - 1);
    assert!(calls.await.iter().all(is_served));
    let stats = store.stats();
    assert_eq!((stats.queued, stats.operations), (0, 1 + MANY));
    assert!(stats.batches < MANY / 10, "{stats:?}");
    assert_eq!(Store::in_memory().stats(), StoreStats::default());
}

#[test]
fn a_ping_needs_no_runtime() {
    timed(LIMIT, start_server, |server| {
        futures::executor::block_on(Store::redis(&server.url()).unwrap().ping()).unwrap();
        futures::executor::block_on(Store::in_memory().ping()).unwrap();
    });
}

#[test]
fn a_scan_needs_no_runtime() {
    let _turn = MACHINE.blocking_read();
    let server = start_server();
    server.cli(&["SET", "td:{x:k}:tat", "9000000000000000 0 1000 1 5"]);
    within(LIMIT, "the test", move || {
        let operator = Operator::new(&Store::redis(&server.url()).unwrap());
        let page = futures::executor::block_on(operator.scan().next()).unwrap().unwrap();
        assert_eq!(page[0].to_string(), "token_bucket x k");
        assert!(futures::executor::block_on(operator.inspect(&page[0])).unwrap().is_some());
    });
}

/// A scan that an outage has stopped begins again at the same server: nothing is left out.
#[tokio::test]
async fn a_scan_goes_on_after_an_outage() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let bucket = TokenBucket::new(&Store::redis(&server.url()).unwrap(), "x", Quota::per_hour(5)).unwrap();
    let allowed = join_all((0..3000_u32).map(|key| bucket.allow(key))).await;
    assert!(allowed.iter().all(Result::is_ok));
    let operator = Operator::new(&Store::redis(&proxy.url()).unwrap());
    let (mut scan, mut entries) = (operator.scan(), BTreeSet::new());
    entries.extend(scan.next().await.unwrap().unwrap());
    assert!(entries.len() < 3000, "one page is not all");
    proxy.cut();
    let error = tokio::time::timeout(CALL, scan.next()).await.expect("the scan hangs").unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    proxy.heal();
    eventually("the next page", RECOVERY, async || match scan.next().await {
        Ok(page) => {
            entries.extend(page.unwrap());
            true
        }
        Err(_) => false,
    })
    .await;
    while let Some(page) = scan.next().await.unwrap() {
        entries.extend(page);
    }
    assert_eq!(entries.len(), 3000);
}

/// On return all releases that were owed have been made, and no connection is left.
#[tokio::test]
async fn a_shutdown_completes_pending_releases() {
    const MANY: usize = 50;
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    let mutex = long_locks(&store);
    let guards = join_all((0..MANY).map(|key| mutex.lock(key.to_string()))).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    drop(guards);
    let _ = store.shutdown(RECOVERY).await;
    assert!((0..MANY).all(|key| is_free(&server, &key.to_string())), "releases were still owed");
    eventually("the connections to go", RECOVERY, async || connections(&server) == 0).await;
    // Whoever calls later is answered, one way or the other.
    let _ = tokio::time::timeout(CALL, mutex.try_lock("k")).await.expect("the call hangs");
}

#[tokio::test]
async fn a_shutdown_ends_within_its_limit() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    let guard = long_locks(&store).lock("k").await.unwrap();
    server.pause();
    drop(guard);
    let began = Instant::now();
    let limit = Duration::from_millis(300);
    let _ = tokio::time::timeout(CALL, store.shutdown(limit)).await.expect("the shutdown hangs");
    assert!(began.elapsed() < limit + Duration::from_secs(1), "{:?}", began.elapsed());
    server.resume();
}
