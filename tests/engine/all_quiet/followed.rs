//! What is followed, learned, counted or held without a lease.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::time::Duration;

use futures::future::{FutureExt as _, LocalBoxFuture, join_all};
use http::{Request, Response};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::fleet::FleetLimit;
use tower_distributed::fleet::FleetTable;
use tower_distributed::response::UpstreamLimits;
use tower_distributed::wait_group::{Adaptive, Signal};
use tower_distributed::{
    ConcurrencyLimitLayer, FleetQuotas, Quota, RateLimitLayer, Store, StoreFailure, TokenBucket,
    WaitGroup,
};

use super::{Idle, SOON, process};
#[cfg(feature = "sentinel")]
use super::{Servers, one_waits};
use support::eventually;
#[cfg(feature = "sentinel")]
use support::program::since_7_0;
use support::redis_server::RedisServer;
#[cfg(feature = "sentinel")]
use support::sentinel::Sentinel;

pub(super) fn states() -> Vec<LocalBoxFuture<'static, Idle>> {
    let states = vec![
        settings_are_followed().boxed_local(),
        limits_are_learned().boxed_local(),
        limits_adapt().boxed_local(),
        processes_are_counted().boxed_local(),
        tokens_are_held("a hold", (1, 1.0), 1).boxed_local(),
        tokens_are_held("1000 holds", (1, 2.0), 1000).boxed_local(),
    ];
    #[cfg(feature = "sentinel")]
    let states = states
        .into_iter()
        .chain(since_7_0().then(|| sentinels_are_followed().boxed_local()))
        .collect();
    states
}

async fn settings_are_followed() -> Idle {
    let server = RedisServer::start().await;
    let [store, other] = [process(&server), process(&server)];
    let (quotas, limit, table) = (
        FleetQuotas::new(&store, "q", "1/s").unwrap(),
        FleetLimit::new(&store, "l", 1_u32).unwrap(),
        FleetTable::new(&store, "t", "").unwrap(),
    );
    Idle::new("followed settings", (1, 1.0), server, async move {
        FleetQuotas::new(&other, "q", "1/s")
            .unwrap()
            .set("7/s", "ann")
            .await
            .unwrap();
        FleetLimit::new(&other, "l", 1_u32)
            .unwrap()
            .set(9_u32, "ann")
            .await
            .unwrap();
        FleetTable::new(&other, "t", "")
            .unwrap()
            .set("/a = 1/d", "ann")
            .await
            .unwrap();
        eventually("all follow", SOON, async || {
            (quotas.version(), limit.version(), table.version()) == (1, 1, 1)
        })
        .await;
    })
}

async fn limits_are_learned() -> Idle {
    let server = RedisServer::start().await;
    let bucket = TokenBucket::new(&process(&server), "b", Quota::per_second(100)).unwrap();
    let layer = RateLimitLayer::new(bucket, |_: &Request<()>| "k").learn(UpstreamLimits::default());
    let upstream = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(
            Response::builder()
                .header("ratelimit-policy", "\"default\";q=2000;w=1")
                .body(())
                .unwrap(),
        )
    });
    let client = layer.layer(upstream);
    for _ in 0..3 {
        client.clone().oneshot(Request::new(())).await.unwrap();
    }
    Idle::new("a learned limit", (0, 0.2), server, async move {
        client.oneshot(Request::new(())).await.unwrap();
    })
}

async fn limits_adapt() -> Idle {
    let server = RedisServer::start().await;
    let group = WaitGroup::new(&process(&server), "g", 20).unwrap();
    let adaptive = Adaptive::aimd().classify(|_: &Result<(), Infallible>| Signal::Success);
    let layer = ConcurrencyLimitLayer::new(group, |(): &()| "k")
        .adaptive(adaptive)
        .unwrap();
    let service = layer.layer(service_fn(async |()| Ok::<_, Infallible>(())));
    for _ in 0..100 {
        service.clone().oneshot(()).await.unwrap();
    }
    Idle::new("an adaptive limit", (0, 0.2), server, async move {
        service.oneshot(()).await.unwrap();
    })
}

async fn processes_are_counted() -> Idle {
    let server = RedisServer::start().await;
    let one = NonZeroU32::MIN;
    let counted = StoreFailure::CountedShare {
        replicas: one,
        at_least: one,
    };
    let limit = |store: Store| {
        let bucket = TokenBucket::new(&store, "b", Quota::per_second(100)).unwrap();
        let layer = RateLimitLayer::<(), ()>::new(bucket, |(): &()| "k").on_store_failure(counted);
        layer.layer(service_fn(async |()| Ok::<_, Infallible>(())))
    };
    let [one, other] = [limit(process(&server)), limit(process(&server))];
    one.clone().oneshot(()).await.unwrap();
    Idle::new("counted shares", (2, 1.0), server, async move {
        other.oneshot(()).await.unwrap();
        one.oneshot(()).await.unwrap();
    })
}

/// They begin one after the other, so that each could have a rhythm of its own.
async fn tokens_are_held(name: &'static str, bounds: (u64, f64), count: u32) -> Idle {
    let server = RedisServer::start().await;
    let bucket = TokenBucket::new(&process(&server), "b", Quota::per_hour(1000)).unwrap();
    let mut holds = Vec::new();
    for _ in 0..count.div_ceil(10) {
        holds.extend(join_all((0..count.min(10)).map(|_| bucket.authorize("k", 1))).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Idle::new(name, bounds, server, async move {
        for hold in holds {
            let hold = hold.unwrap();
            assert!(hold.is_held() && !hold.capture(1).await.unwrap().ended);
        }
    })
}

/// Two processes, of which each has two connections to the Sentinel, and asks twice in one call every 2 s.
#[cfg(feature = "sentinel")]
async fn sentinels_are_followed() -> Idle {
    let sentinel = Sentinel::start().await;
    let (urls, name) = (sentinel.sentinel_urls(), sentinel.service_name());
    let stores = [(); 2].map(|()| Store::builder().sentinel(urls.clone(), name).unwrap());
    one_waits("Sentinels", (20, 2.5), stores, sentinel, Sentinel::master).await
}

#[cfg(feature = "sentinel")]
impl Servers for Sentinel {
    fn each(&self) -> Vec<&RedisServer> {
        vec![self.sentinel()]
    }
}
