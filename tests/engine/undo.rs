//! Dropped callers, delayed waiters and observed 429s cost a few script calls, not one each (defect 7).

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tokio::sync::Barrier;
use tower::{Service, ServiceExt, service_fn};
use tower_distributed::{Quota, RateLimitLayer, TokenBucket};
use tower_layer::Layer;

use crate::scene::{SOON, open, scripts_run, settled_scripts};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// Latency that lets concurrent calls meet in the queue on any machine.
const SLOW: Duration = Duration::from_millis(20);

const CALLERS: u32 = 2_000;

/// A bucket behind a proxy, and another way to it.
struct Scene {
    server: RedisServer,
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
        bucket.block_for("warm", Duration::from_secs(1)).await.unwrap();
        bucket.reset("warm").await.unwrap();
        bucket.peek("warm").await.unwrap();
        proxy.delay_replies(SLOW);
        Self { server, proxy, bucket, looking }
    }

    /// How many scripts are run for something.
    async fn scripts_for(&self, act: impl Future<Output = ()>) -> u64 {
        let before = settled_scripts(&self.server).await;
        act.await;
        settled_scripts(&self.server).await - before
    }
}

fn plenty() -> Quota {
    Quota::per_hour(1).burst(2 * CALLERS)
}

/// Callers of one key, and of as many as there are callers, go away while the proxy holds the replies.
#[tokio::test]
async fn dropped_callers_cost_few_scripts() {
    for keys in [1, CALLERS] {
        let scene = Scene::set(plenty()).await;
        scene.proxy.stall();
        let mut calls: Vec<_> =
            (0..CALLERS).map(|caller| Box::pin(scene.bucket.reserve(caller % keys))).collect();
        for call in &mut calls {
            assert!(poll!(call.as_mut()).is_pending());
        }
        eventually("calls to be under way", SOON, async || scene.proxy.held_back() > 0).await;
        let before = scripts_run(&scene.server);
        drop(calls);
        scene.proxy.let_through();
        settled_scripts(&scene.server).await;
        let scripts = scripts_run(&scene.server) - before;
        assert!(scripts <= u64::from(CALLERS) / 20, "{scripts} scripts for {CALLERS} callers of {keys} keys");
        // Nothing has been built on the only call of a key, so it is given back.
        let is_given_back = async || {
            let states = join_all((0..keys).map(|key| scene.looking.peek(key))).await;
            states.into_iter().all(|state| state.unwrap().remaining() == 2 * CALLERS)
        };
        if keys == CALLERS {
            eventually("all to be given back", SOON, is_given_back).await;
        }
    }
}

/// They are dropped after their reply has come and before they are polled.
#[tokio::test]
async fn callers_dropped_after_their_reply_cost_few_scripts() {
    let scene = Scene::set(plenty()).await;
    let mut calls: Vec<_> = (0..CALLERS).map(|_| Box::pin(scene.bucket.reserve(0))).collect();
    for call in &mut calls {
        assert!(poll!(call.as_mut()).is_pending());
    }
    // The first one carries its own call; the others were sent for.
    calls.remove(0).await.unwrap().cancel().await.unwrap();
    eventually("all to be charged", SOON, async || {
        scene.looking.peek(0).await.unwrap().remaining() <= CALLERS + 1
    })
    .await;
    // And answered: what is asked for now is answered later.
    scene.bucket.allow("another").await.unwrap();
    let scripts = scene.scripts_for(async { drop(calls) }).await;
    assert!(scripts <= u64::from(CALLERS) / 10, "{scripts} scripts for {CALLERS} callers");
}

/// They are dropped during their delay.
#[tokio::test]
async fn dropped_waiters_cost_few_scripts() {
    const EACH: Duration = Duration::from_secs(360);
    let scene = Scene::set(Quota::per_hour(10).burst(1)).await;
    scene.bucket.allow(0).await.unwrap();
    let mut waits: Vec<_> = (0..CALLERS).map(|_| Box::pin(scene.bucket.wait(0))).collect();
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
    let scripts = scene.scripts_for(async { waits.into_iter().rev().for_each(drop) }).await;
    let line = line().await;
    assert!(line <= EACH, "not all is given back: {line:?}");
    assert!(scripts <= u64::from(CALLERS) / 10, "{scripts} scripts for {CALLERS} waiters");
}

/// Each looks at the bucket at the end of its delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_waiters_cost_few_scripts() {
    const WAITERS: u64 = 500;
    let scene = Scene::set(Quota::per_second(5_000).burst(1)).await;
    let waits = async {
        let waits = (0..WAITERS).map(|_| {
            let bucket = scene.bucket.clone();
            tokio::spawn(async move { bucket.wait("k").await })
        });
        for wait in join_all(waits.collect::<Vec<_>>()).await {
            assert!(wait.unwrap().unwrap().is_admitted());
        }
    };
    let scripts = scene.scripts_for(waits).await;
    assert!(scripts <= WAITERS / 5, "{scripts} scripts for {WAITERS} waiters of one key");
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
    let service = layer.block_on_response(|wait: &Duration| Some(*wait)).layer(upstream);
    let requests = async {
        let calls = (0..RESPONSES).map(|number| {
            let mut service = service.clone();
            tokio::spawn(async move { service.ready().await.unwrap().call(number).await.unwrap() })
        });
        for call in join_all(calls.collect::<Vec<_>>()).await {
            call.unwrap();
        }
    };
    let scripts = scene.scripts_for(requests).await;
    // The longest of the blocks holds.
    let longest = Duration::from_secs(100 + RESPONSES as u64 - 5);
    assert!(scene.looking.peek("k").await.unwrap().blocked_for() > longest);
    assert!(scripts <= RESPONSES as u64 / 4, "{scripts} scripts for {RESPONSES} responses");
}
