//! Dropped callers, delayed waiters and observed 429s cost a few script calls, not one each.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tokio::sync::Barrier;
use tower::{Service, ServiceExt, service_fn};
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
use tower_layer::Layer;

use crate::scene::{MACHINE, RECOVERY, scripts_run, settled_scripts};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::slow_proxy::SlowProxy;

const LONG: Duration = Duration::from_secs(30);

/// Latency that lets concurrent calls meet in the queue on any machine.
const SLOW: Duration = Duration::from_millis(20);

const CALLERS: u32 = 2_000;

fn store(url: &str) -> Store {
    Store::builder().timeout(LONG).redis(url).unwrap()
}

/// Another way to the same buckets.
fn looking_at(server: &RedisServer, bucket: &TokenBucket) -> TokenBucket {
    TokenBucket::new(&store(&server.url()), bucket.name(), bucket.quotas().clone()).unwrap()
}

/// Drops callers of so many keys while a proxy holds the replies; returns the number of scripts sent afterwards.
async fn scripts_for_dropped_callers(keys: u32) -> u64 {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let _turn = MACHINE.read().await;
    let quota = Quota::per_hour(1).burst(2 * CALLERS);
    let bucket = TokenBucket::new(&store(&proxy.url()), "left", quota).unwrap();
    bucket.allow("warm").await.unwrap();
    bucket.reset("warm").await.unwrap();
    proxy.stall();
    let mut calls: Vec<_> = (0..CALLERS).map(|caller| Box::pin(bucket.reserve(caller % keys))).collect();
    for call in &mut calls {
        assert!(poll!(call.as_mut()).is_pending());
    }
    eventually("calls to be under way", RECOVERY, async || proxy.held_back() > 0).await;
    let before = proxy.requests_containing(b"FCALL");
    drop(calls);
    proxy.let_through();
    settled_scripts(&server).await;
    // Nothing has been built on the only call of a key, so it is given back.
    let looking = looking_at(&server, &bucket);
    let is_given_back = async || {
        let states = join_all((0..keys).map(|key| looking.peek(key))).await;
        states.into_iter().all(|state| state.unwrap().remaining() == 2 * CALLERS)
    };
    if keys == CALLERS {
        eventually("all to be given back", RECOVERY, is_given_back).await;
    }
    proxy.requests_containing(b"FCALL") - before
}

#[tokio::test]
async fn dropped_callers_of_one_key_cost_few_scripts() {
    let scripts = scripts_for_dropped_callers(1).await;
    assert!(scripts <= u64::from(CALLERS) / 20, "{scripts} scripts for {CALLERS} callers");
}

#[tokio::test]
async fn dropped_callers_of_many_keys_cost_few_scripts() {
    let scripts = scripts_for_dropped_callers(CALLERS).await;
    assert!(scripts <= u64::from(CALLERS) / 20, "{scripts} scripts for {CALLERS} callers");
}

/// Defect 7: a caller that was dropped after its reply had come and before it was polled cost a script of its own.
#[tokio::test]
async fn callers_dropped_after_their_reply_cost_few_scripts() {
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let _turn = MACHINE.read().await;
    let quota = Quota::per_hour(1).burst(2 * CALLERS);
    let bucket = TokenBucket::new(&store(&proxy.url()), "left", quota).unwrap();
    bucket.allow("warm").await.unwrap();
    let mut calls: Vec<_> = (0..CALLERS).map(|_| Box::pin(bucket.reserve(0))).collect();
    for call in &mut calls {
        assert!(poll!(call.as_mut()).is_pending());
    }
    let looking = looking_at(&server, &bucket);
    // The first one carries its own call; the others were sent for.
    calls.remove(0).await.unwrap().cancel().await.unwrap();
    eventually("all to be charged", RECOVERY, async || {
        looking.peek(0).await.unwrap().remaining() <= CALLERS + 1
    })
    .await;
    // And answered: what is asked for now is answered later.
    bucket.allow("another").await.unwrap();
    let before = settled_scripts(&server).await;
    drop(calls);
    let after = settled_scripts(&server).await;
    assert!(after - before <= u64::from(CALLERS) / 10, "{} scripts for {CALLERS} callers", after - before);
}

/// Defect 7: so did a waiter that was dropped during its delay.
#[tokio::test]
async fn dropped_waiters_cost_few_scripts() {
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let _turn = MACHINE.read().await;
    let bucket = TokenBucket::new(&store(&proxy.url()), "left", Quota::per_hour(10).burst(1)).unwrap();
    bucket.allow(0).await.unwrap();
    let mut waits: Vec<_> = (0..CALLERS).map(|_| Box::pin(bucket.wait(0))).collect();
    let looking = looking_at(&server, &bucket);
    let line = async || looking.peek(0).await.unwrap().reset_after().unwrap();
    let full = Duration::from_secs(360) * CALLERS;
    eventually("all to wait", RECOVERY, async || {
        for wait in &mut waits {
            assert!(poll!(wait.as_mut()).is_pending());
        }
        line().await > full
    })
    .await;
    // All have heard of their delays.
    bucket.peek("another").await.unwrap();
    for wait in &mut waits {
        assert!(poll!(wait.as_mut()).is_pending());
    }
    let before = settled_scripts(&server).await;
    // The last first, so that none has another built upon it.
    waits.into_iter().rev().for_each(drop);
    let after = settled_scripts(&server).await;
    let line = line().await;
    assert!(line <= Duration::from_secs(360), "not all is given back: {line:?}");
    assert!(after - before <= u64::from(CALLERS) / 10, "{} scripts for {CALLERS} waiters", after - before);
}

/// Defect 7: a look at the bucket at the end of each delay, each by a script of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_waiters_cost_few_scripts() {
    const WAITERS: u64 = 500;
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let _turn = MACHINE.read().await;
    let bucket = TokenBucket::new(&store(&proxy.url()), "late", Quota::per_second(5_000).burst(1)).unwrap();
    bucket.allow("warm").await.unwrap();
    bucket.peek("warm").await.unwrap();
    let before = scripts_run(&server);
    let waits = (0..WAITERS).map(|_| {
        let bucket = bucket.clone();
        tokio::spawn(async move { bucket.wait("k").await })
    });
    let waits: Vec<_> = waits.collect();
    for wait in join_all(waits).await {
        assert!(wait.unwrap().unwrap().is_admitted());
    }
    let scripts = settled_scripts(&server).await - before;
    assert!(scripts <= WAITERS / 5, "{scripts} scripts for {WAITERS} waiters of one key");
}

/// Defect 7: each response of an upstream that says stop blocked the key by a script of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observed_refusals_cost_few_scripts() {
    const RESPONSES: usize = 200;
    let server = RedisServer::start().await;
    let proxy = SlowProxy::start(server.port(), SLOW).await;
    let _turn = MACHINE.read().await;
    let quota = Quota::per_hour(1).burst(1_000);
    let bucket = TokenBucket::new(&store(&proxy.url()), "upstream", quota).unwrap();
    bucket.allow("warm").await.unwrap();
    bucket.block_for("warm", Duration::from_secs(1)).await.unwrap();
    let looking = looking_at(&server, &bucket);
    // All are answered at the same time, each with another wait.
    let all = Arc::new(Barrier::new(RESPONSES));
    let upstream = service_fn(move |number: usize| {
        let all = all.clone();
        async move {
            all.wait().await;
            Ok::<_, std::io::Error>(Duration::from_secs(100 + number as u64))
        }
    });
    let layer = RateLimitLayer::new(bucket, |_: &usize| "k").block_on_response(|wait: &Duration| Some(*wait));
    let service = layer.layer(upstream);
    let calls = (0..RESPONSES).map(|number| {
        let mut service = service.clone();
        tokio::spawn(async move { service.ready().await.unwrap().call(number).await.unwrap() })
    });
    let before = scripts_run(&server);
    let calls: Vec<_> = calls.collect();
    for call in join_all(calls).await {
        call.unwrap();
    }
    let longest = Duration::from_secs(100 + RESPONSES as u64 - 5);
    let scripts = settled_scripts(&server).await - before;
    // The longest of the blocks holds.
    assert!(looking.peek("k").await.unwrap().blocked_for() > longest);
    assert!(scripts <= RESPONSES as u64 / 4, "{scripts} scripts for {RESPONSES} responses");
}
