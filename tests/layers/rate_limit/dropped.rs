//! A response future may be dropped at any time: what was not let through is given back.

use std::future::{Ready, ready};
use std::time::Duration;

use tokio_test::{assert_pending, task};
use tower::retry::Policy;
use tower::{BoxError, Layer as _, Service as _, ServiceBuilder, ServiceExt as _};
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};

use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, at_most, on_each_store};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

on_each_store!(
    before_the_first_poll,
    while_it_waits_for_its_turn,
    before_others_that_wait,
    again_and_again_by_a_retry_over_a_time_out,
);

fn by_name(name: &&'static str) -> &'static str {
    name
}

async fn before_the_first_poll(stores: Stores) {
    let bucket = at_most(5, &stores.open());
    let probe = Probe::default();
    let mut service = RateLimitLayer::new(bucket.clone(), by_name).layer(probe.clone());
    drop(service.ready().await.unwrap().call("ann"));
    // In process it is decided, and handed on, within the call; elsewhere nothing has happened yet.
    let handed_on = u32::try_from(probe.calls()).unwrap();
    assert_eq!(handed_on, u32::from(stores.open().to_string() == "in-memory"));
    eventually("no more to be charged than was handed on", SOON, async || {
        bucket.peek("ann").await.unwrap().remaining() == 5 - handed_on
    })
    .await;
}

async fn while_it_waits_for_its_turn(stores: Stores) {
    let bucket = at_most(1, &stores.open());
    bucket.allow("ann").await.unwrap();
    let probe = Probe::default();
    let mut service = RateLimitLayer::new(bucket.clone(), by_name).max_wait(100 * HOUR).layer(probe.clone());
    let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
    // Until the reservation is seen, and the future knows of it.
    eventually("the reservation", SOON, async || {
        assert_pending!(call.poll());
        bucket.peek("ann").await.unwrap().available_after(1).unwrap() > HOUR
    })
    .await;
    assert_pending!(call.poll());
    drop(call);
    eventually("the token to be given back", SOON, async || {
        bucket.peek("ann").await.unwrap().available_after(1).unwrap() <= HOUR
    })
    .await;
    assert_eq!(probe.calls(), 0);
}

async fn before_others_that_wait(stores: Stores) {
    let bucket = at_most(1, &stores.open());
    bucket.allow("ann").await.unwrap();
    let limit = RateLimitLayer::new(bucket.clone(), by_name).max_wait(100 * HOUR);
    let mut service = limit.layer(Probe::default());
    let available_after = async || bucket.peek("ann").await.unwrap().available_after(1).unwrap();
    let mut calls = Vec::new();
    for waiting in 1..=2 {
        let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
        eventually("the reservation", SOON, async || {
            assert_pending!(call.poll());
            available_after().await > waiting * HOUR
        })
        .await;
        calls.push(call);
    }
    // The last gives back all of its own; the first then has nobody who builds upon it.
    drop(calls.pop());
    eventually("the second token", SOON, async || available_after().await <= 2 * HOUR).await;
    drop(calls);
    eventually("the first token", SOON, async || available_after().await <= HOUR).await;
}

/// Tries again whatever the error.
#[derive(Clone)]
struct Stubborn;

impl<Res> Policy<&'static str, Res, BoxError> for Stubborn {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut &'static str, result: &mut Result<Res, BoxError>) -> Option<Ready<()>> {
        result.is_err().then(|| ready(()))
    }

    fn clone_request(&mut self, request: &&'static str) -> Option<&'static str> {
        Some(request)
    }
}

/// What is given up is not in the way of the next try.
async fn again_and_again_by_a_retry_over_a_time_out(stores: Stores) {
    let bucket = TokenBucket::new(&stores.open(), "retried", Quota::per_second(5).burst(3)).unwrap();
    bucket.allow_n("ann", 3).await.unwrap();
    let limit = RateLimitLayer::new(bucket.clone(), by_name).cost(|_: &&'static str| 3).max_wait(HOUR);
    let service = ServiceBuilder::new()
        .retry(Stubborn)
        .timeout(Duration::from_millis(150))
        .layer(limit)
        .service(Probe::default());
    tokio::time::timeout(2 * SOON, service.oneshot("ann"))
        .await
        .expect("each is behind the one before")
        .unwrap();
    let after = bucket.peek("ann").await.unwrap().available_after(3).unwrap();
    assert!(after <= Duration::from_millis(600), "{after:?} of debt");
}

#[tokio::test]
async fn while_redis_is_silent() {
    let redis = RedisServer::start().await;
    let proxy = FaultProxy::start(redis.port()).await;
    let store = Store::builder().timeout(Duration::from_secs(60)).redis(&proxy.url()).unwrap();
    let bucket = at_most(5, &store);
    bucket.allow("warm-up").await.unwrap();
    bucket.peek("ann").await.unwrap();
    let before = proxy.requests_containing(b":ann}");
    proxy.stall();

    let probe = Probe::default();
    let mut service = RateLimitLayer::new(bucket.clone(), by_name).layer(probe.clone());
    let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
    assert_pending!(call.poll());
    drop(call);
    proxy.heal();
    eventually("the request, and the one that takes it back", SOON, async || {
        proxy.requests_containing(b":ann}") >= before + 2
    })
    .await;
    eventually("the token to be given back", SOON, async || {
        bucket.peek("ann").await.unwrap().remaining() == 5
    })
    .await;
    assert_eq!(probe.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_its_time_to_act_nothing_is_given_back() {
    let bucket = at_most(1, &Store::in_memory());
    bucket.allow("ann").await.unwrap();
    let mut service = RateLimitLayer::new(bucket.clone(), by_name).max_wait(HOUR).layer(Probe::hanging());
    let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
    assert_pending!(call.poll());
    tokio::time::advance(HOUR).await;
    assert_pending!(call.poll());
    drop(call);
    assert_eq!(bucket.peek("ann").await.unwrap().remaining(), 0);
}

#[test]
fn without_a_runtime_a_drop_does_not_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bucket = at_most(1, &Store::in_memory());
    let limit = RateLimitLayer::new(bucket.clone(), by_name).max_wait(100 * HOUR);
    let mut service = limit.layer(Probe::default());
    runtime.block_on(async {
        bucket.allow("ann").await.unwrap();
        service.ready().await.unwrap();
    });
    let mut call = task::spawn(service.call("ann"));
    runtime.block_on(async { assert_pending!(call.poll()) });
    drop(runtime);
    drop(call);
}
