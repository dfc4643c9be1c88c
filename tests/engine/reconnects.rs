//! How often, and how much at a time, stores connect again.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::net::TcpListener;
use tower_distributed::{MutexGuard, Store};

use crate::scene::{CALL, MACHINE, RECOVERY, is_served, long_locks, wide_bucket};
use support::eventually;
use support::redis_server::RedisServer;
use support::slow_proxy::SlowProxy;

const STORES: usize = 20;

/// In how many spans of `width` after `start` anybody tried to connect.
fn spans(width: Duration, start: Instant, attempts: &[Instant]) -> usize {
    let of = |attempt: &Instant| attempt.duration_since(start).as_micros() / width.as_micros();
    attempts.iter().map(of).collect::<HashSet<_>>().len()
}

/// Takes a lock and makes somebody wait for it for a moment, which makes the store subscribe.
async fn subscribed(store: &Store, key: usize) -> MutexGuard {
    let mutex = long_locks(store);
    let guard = mutex.lock(key.to_string()).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(50), mutex.lock(key.to_string())).await;
    assert!(waiting.is_err(), "two holders at a time");
    guard
}

/// Defect 8: the subscriptions of all stores came back in the same millisecond, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnects_of_many_stores_are_spread_out() {
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), Duration::ZERO).await;
    let _turn = MACHINE.read().await;
    let stores: Vec<_> = (0..STORES).map(|_| Store::redis(&proxy.url()).unwrap()).collect();
    let guards = join_all(stores.iter().enumerate().map(|(key, store)| subscribed(store, key))).await;
    let channels =
        || server.query::<Vec<String>>(&["PUBSUB", "CHANNELS", "*:wake:????????????????"]).unwrap().len();
    eventually("all stores to be subscribed", RECOVERY, async || channels() == STORES).await;

    let before = proxy.accepted().len();
    let cut = Instant::now();
    proxy.refuse();
    // By then the pauses have grown.
    let settled = cut + Duration::from_millis(600);
    eventually("the outage to last", RECOVERY, async || cut.elapsed() > Duration::from_millis(2_000)).await;
    let attempts: Vec<_> = proxy.accepted().split_off(before);
    let later: Vec<_> = attempts.iter().copied().filter(|attempt| *attempt > settled).collect();
    // Stores that come back together share their spans, each time; a machine that stood still for a moment brings a few
    // together, once.
    let spans = spans(Duration::from_millis(10), settled, &later);
    assert!(
        3 * spans >= later.len(),
        "{} attempts of {STORES} stores in {spans} spans of 10 ms",
        later.len()
    );
    // And not too often altogether: in two seconds.
    assert!(attempts.len() <= 15 * STORES, "{} attempts of {STORES} stores in 2 s", attempts.len());

    proxy.heal();
    eventually("all stores to be subscribed again", CALL, async || channels() == STORES).await;
    for (key, store) in stores.iter().enumerate() {
        let bucket = wide_bucket(store);
        eventually("an answer", RECOVERY, async || is_served(&bucket.allow(key.to_string()).await)).await;
    }
    drop(guards);
}

/// Defect 8: a subscription that was closed right after it was made was made anew about 100 times a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_closed_at_once_backs_off() {
    let server = RedisServer::start().await;
    let _turn = MACHINE.read().await;
    let store = Store::redis(&server.url()).unwrap();
    let guard = subscribed(&store, 0).await;
    let subscriptions = || server.calls_of("subscribe");
    eventually("the store to be subscribed", RECOVERY, async || subscriptions() > 0).await;

    let mut client = server.client().unwrap();
    let mut kill = deadpool_redis::redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("pubsub");
    let (began, before) = (Instant::now(), subscriptions());
    let mut made = [0; 2];
    for (second, made) in made.iter_mut().enumerate() {
        let end = Duration::from_secs(second as u64 + 1);
        while began.elapsed() < end {
            client.query::<u64>(&kill).unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        *made = subscriptions() - before;
    }
    let [first, second] = [made[0], made[1] - made[0]];
    // At random, four a second on average.
    assert!(first.max(second) <= 12, "{first} subscriptions in the first second, {second} in the next");

    // It is back soon once nobody closes it.
    let channels =
        || server.query::<Vec<String>>(&["PUBSUB", "CHANNELS", "*:wake:????????????????"]).unwrap().len();
    eventually("the store to be subscribed again", CALL, async || channels() == 1).await;
    drop(guard);
}

/// A server that accepts connections and answers nothing: a call takes one time-out, not one after the other.
#[tokio::test]
async fn a_call_tries_to_connect_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let store = Store::builder().connect_timeout(Duration::from_millis(100)).redis(&url).unwrap();
    let bucket = wide_bucket(&store);
    let mut accepted = Vec::new();
    let call = bucket.allow("k");
    tokio::pin!(call);
    let outcome = loop {
        tokio::select! {
            outcome = &mut call => break outcome,
            connection = listener.accept() => accepted.push(connection.unwrap()),
        }
    };
    assert!(outcome.is_err_and(|error| error.is_unavailable()));
    assert_eq!(accepted.len(), 1, "connections for one call");
}

/// A connection that was idle is tried with a `PING` before calls that may not run twice. Others need no second round trip:
/// they are sent again if the connection is closed.
#[tokio::test]
async fn an_idle_connection_is_not_tried_before_a_call_that_may_run_twice() {
    /// A connection without a reply for a second is idle.
    const IDLE: Duration = Duration::from_millis(1_100);
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    let (bucket, mutex) = (wide_bucket(&store), long_locks(&store));
    assert!(is_served(&bucket.allow("k").await));
    let mut pings = [server.calls_of("ping"); 3];
    tokio::time::sleep(IDLE).await;
    let guard = mutex.try_lock("k").await.unwrap();
    pings[1] = server.calls_of("ping");
    tokio::time::sleep(IDLE).await;
    assert!(is_served(&bucket.allow("k").await));
    pings[2] = server.calls_of("ping");
    assert_eq!(pings, [pings[0], pings[0], pings[0] + 1]);
    drop(guard);
}
