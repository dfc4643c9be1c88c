//! How often, and how much at a time, stores connect again.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::task::JoinHandle;

use crate::scene::{SOON, is_served, long_locks, open, subscribed, wide_bucket};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

const STORES: usize = 20;

/// Defect 8: the subscriptions of all stores came back in the same millisecond, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnects_of_many_stores_are_spread_out() {
    const SPAN: u128 = 10_000;
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let stores: Vec<_> = (0..STORES).map(|_| open(&proxy.url())).collect();
    // Who waits for a lock makes its store subscribe.
    let locks = || stores.iter().map(long_locks).enumerate();
    let guards =
        join_all(locks().map(async |(key, mutex)| mutex.lock(key.to_string()).await.unwrap()))
            .await;
    let waiters: Vec<_> = locks()
        .map(|(key, mutex)| tokio::spawn(async move { mutex.lock(key.to_string()).await }))
        .collect();
    eventually("all stores to be subscribed", SOON, async || {
        subscribed(&server) == STORES
    })
    .await;
    waiters.iter().for_each(JoinHandle::abort);

    let (before, cut) = (proxy.accepted().len(), Instant::now());
    proxy.cut();
    // The pauses have grown by then.
    let settled = cut + Duration::from_millis(600);
    eventually("the outage to last", SOON, async || {
        cut.elapsed() > Duration::from_secs(2)
    })
    .await;
    let attempts = proxy.accepted().split_off(before);
    let later: Vec<_> = attempts
        .iter()
        .filter_map(|attempt| attempt.checked_duration_since(settled))
        .collect();
    // Stores that come back together share their spans, each time; a machine that stood still for a moment brings a few
    // together, once.
    let spans = later
        .iter()
        .map(|after| after.as_micros() / SPAN)
        .collect::<HashSet<_>>()
        .len();
    assert!(
        3 * spans >= later.len(),
        "{} attempts of {STORES} stores in {spans} spans",
        later.len()
    );
    assert!(
        attempts.len() <= 15 * STORES,
        "{} attempts of {STORES} stores in 2 s",
        attempts.len()
    );

    proxy.heal();
    eventually("all stores to be subscribed again", SOON, async || {
        subscribed(&server) == STORES
    })
    .await;
    for store in &stores {
        eventually("an answer", SOON, async || {
            is_served(&wide_bucket(store).allow("k").await)
        })
        .await;
    }
    drop(guards);
}
