//! Keys that are known to be refused need not be asked for.

use std::time::Duration;

use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{RateLimitLayer, Refusal, Store};

use crate::probe::Probe;
use crate::stores::{SOON, at_most};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

fn everything(_: &u32) -> &'static str {
    "everything"
}

/// Requests are their own costs, of five tokens. The proxy counts what is asked.
macro_rules! limited_to_five {
    ($proxy:ident, $layer:ident => $with:expr) => {{
        let bucket = at_most(5, &Store::redis(&$proxy.url()).unwrap());
        let $layer = RateLimitLayer::new(bucket, everything).cost(|cost: &u32| *cost);
        $with.layer(Probe::default())
    }};
}

fn asked(proxy: &FaultProxy) -> u64 {
    proxy.requests_containing(b"everything}")
}

#[tokio::test]
async fn by_default_refusals_are_repeated_without_asking() {
    let redis = RedisServer::start().await;
    let proxy = FaultProxy::start(redis.port()).await;
    let mut service = limited_to_five!(proxy, layer => layer);
    assert!(service.ready().await.unwrap().call(3).await.is_ok());
    assert!(service.ready().await.unwrap().call(3).await.is_err());

    proxy.stall();
    for cost in [3, 4, 5, 3] {
        let error = service.ready().await.unwrap().call(cost).await.unwrap_err();
        let refusal = error.downcast_ref::<Refusal>().unwrap();
        assert!(refusal.retry_after().is_some_and(|after| after > Duration::from_secs(3500)), "{refusal}");
    }
    proxy.heal();
    assert!(service.ready().await.unwrap().call(2).await.is_ok(), "less was not refused");
}

#[tokio::test]
async fn they_are_asked_for_again_before_long() {
    let redis = RedisServer::start().await;
    let proxy = FaultProxy::start(redis.port()).await;
    let mut service = limited_to_five!(proxy, layer => layer.cache_refusals(true));
    assert!(service.ready().await.unwrap().call(5).await.is_ok());
    assert!(service.ready().await.unwrap().call(5).await.is_err());
    let before = asked(&proxy);
    eventually("the next question", SOON, async || {
        assert!(service.ready().await.unwrap().call(5).await.is_err());
        asked(&proxy) > before
    })
    .await;
}

#[tokio::test]
async fn by_choice_all_are_asked_for() {
    let redis = RedisServer::start().await;
    let proxy = FaultProxy::start(redis.port()).await;
    let mut service = limited_to_five!(proxy, layer => layer.cache_refusals(false));
    assert!(service.ready().await.unwrap().call(5).await.is_ok());
    let before = asked(&proxy);
    for _ in 0..9 {
        assert!(service.ready().await.unwrap().call(5).await.is_err());
    }
    assert_eq!(asked(&proxy), before + 9);
}
