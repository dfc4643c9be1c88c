//! Dropped callers, delayed waiters and observed 429s cost a few script calls, not one each (defect 7).

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tokio::sync::Barrier;
use tower::{ServiceExt as _, service_fn};
use tower_distributed::{Quota, RateLimitLayer, TokenBucket};
use tower_layer::Layer as _;

use crate::scene::{SOON, open};
use support::eventually;
use support::program::call_command;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// Latency that lets concurrent calls meet in the queue on any machine.
const SLOW: Duration = Duration::from_millis(20);

const CALLERS: u32 = 2_000;

/// A bucket behind a proxy, and another way to it.
struct Scene {
    _server: RedisServer,
    proxy: FaultProxy,
    bucket: TokenBucket,
    looking: TokenBucket,
}

impl Scene {
    async fn set(quota: Quota) -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let [bucket, looking] = [proxy.url(), server.url()]
            .map(|url| TokenBucket::new(&open(&url), "left", quota.clone()).unwrap());
        bucket.allow("warm").await.unwrap();
        bucket
            .block_for("warm", Duration::from_secs(1))
            .await
            .unwrap();
        bucket.reset("warm").await.unwrap();
        bucket.peek("warm").await.unwrap();
        proxy.delay_replies(SLOW);
        Self {
            _server: server,
            proxy,
            bucket,
            looking,
        }
    }

    /// How many scripts were asked for behind the proxy.
    fn scripts(&self) -> u64 {
        self.proxy.requests_containing(call_command())
    }
}

/// Callers go away while the proxy holds the replies. Half of them are those of one key.
#[tokio::test]
async fn dropped_callers_cost_few_scripts() {
    const BURST: u32 = 2 * CALLERS;
    let scene = Scene::set(Quota::per_hour(1).burst(BURST)).await;
    scene.proxy.stall();
    let key = |caller: u32| if caller.is_multiple_of(2) { 0 } else { caller };
    let mut calls: Vec<_> = (0..CALLERS)
        .map(|caller| Box::pin(scene.bucket.reserve(key(caller))))
        .collect();
    for call in &mut calls {
        assert!(poll!(call.as_mut()).is_pending());
    }
    eventually("calls to be under way", SOON, async || {
        scene.proxy.held_back() > 0
    })
    .await;
    let before = scene.scripts();
    drop(calls);
    scene.proxy.let_through();
    // Nothing has been built on the only call of a key, so it is given back.
    eventually("all others to be given back", SOON, async || {
        let states = join_all((1..CALLERS).step_by(2).map(|key| scene.looking.peek(key))).await;
        states
            .into_iter()
            .all(|state| state.unwrap().remaining() == BURST)
    })
    .await;
    let scripts = scene.scripts() - before;
    assert!(
        scripts <= u64::from(CALLERS) / 20,
        "{scripts} scripts for {CALLERS} callers"
    );
}

/// They are dropped during their delay.
#[tokio::test]
async fn dropped_waiters_cost_few_scripts() {
    const EACH: Duration = Duration::from_secs(360);
    let scene = Scene::set(Quota::per_hour(10).burst(1)).await;
    scene.bucket.allow(0).await.unwrap();
    let mut waits: Vec<_> = (0..CALLERS)
        .map(|_| Box::pin(scene.bucket.wait(0)))
        .collect();
    let line = async || scene.looking.peek(0).await.unwrap().reset_after().unwrap();
    eventually("all to wait", SOON, async || {
        for wait in &mut waits {
            assert!(poll!(wait.as_mut()).is_pending());
        }
        line().await > EACH * CALLERS
    })
    .await;
    // All have heard of their delays.
    scene.bucket.peek("another").await.unwrap();
    for wait in &mut waits {
        assert!(poll!(wait.as_mut()).is_pending());
    }
    // The last first, so that none has another built upon it.
    let before = scene.scripts();
    waits.into_iter().rev().for_each(drop);
    eventually("all to be given back", SOON, async || line().await <= EACH).await;
    let scripts = scene.scripts() - before;
    assert!(
        scripts <= u64::from(CALLERS) / 10,
        "{scripts} scripts for {CALLERS} waiters"
    );
}

/// Each looks at the bucket at the end of its delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_waiters_cost_few_scripts() {
    const WAITERS: u64 = 500;
    let scene = Scene::set(Quota::per_second(5_000).burst(1)).await;
    let before = scene.scripts();
    let waits = (0..WAITERS).map(|_| {
        let bucket = scene.bucket.clone();
        tokio::spawn(async move { bucket.wait("k").await })
    });
    for wait in join_all(waits.collect::<Vec<_>>()).await {
        assert!(wait.unwrap().unwrap().is_admitted());
    }
    let scripts = scene.scripts() - before;
    assert!(
        scripts <= WAITERS / 5,
        "{scripts} scripts for {WAITERS} waiters of one key"
    );
}

/// Each response of an upstream that says stop blocks the key, all at the same time, each with another wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observed_refusals_cost_few_scripts() {
    const RESPONSES: usize = 200;
    let scene = Scene::set(Quota::per_hour(1).burst(1_000)).await;
    let all = Arc::new(Barrier::new(RESPONSES));
    let upstream = service_fn(move |number: usize| {
        let all = all.clone();
        async move {
            all.wait().await;
            Ok::<_, std::io::Error>(Duration::from_secs(100 + number as u64))
        }
    });
    let layer = RateLimitLayer::new(scene.bucket.clone(), |_: &usize| "k");
    let service = layer
        .block_on_response(|wait: &Duration| Some(*wait))
        .layer(upstream);
    let before = scene.scripts();
    let calls = (0..RESPONSES).map(|number| tokio::spawn(service.clone().oneshot(number)));
    for call in join_all(calls.collect::<Vec<_>>()).await {
        call.unwrap().unwrap();
    }
    let longest = Duration::from_secs(100 + RESPONSES as u64 - SOON.as_secs());
    eventually("the longest of the blocks to hold", SOON, async || {
        scene.looking.peek("k").await.unwrap().blocked_for() > longest
    })
    .await;
    let scripts = scene.scripts() - before;
    assert!(
        scripts <= RESPONSES as u64 / 4,
        "{scripts} scripts for {RESPONSES} responses"
    );
}
