//! Captures that the network holds up: what is sent again is carried out before them.

use std::time::Duration;

use tower_distributed::token_bucket::{BucketState, OnEnd};
use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};

use crate::leases::kinds::with_proxy;
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);
const TOKENS: u32 = 100;

struct Scene {
    server: RedisServer,
    proxy: FaultProxy,
}

impl Scene {
    async fn set() -> Self {
        let (server, proxy) = with_proxy().await;
        Self { server, proxy }
    }

    fn bucket(&self, on_end: OnEnd) -> TokenBucket {
        // For a busy host; what is held up is given up after it.
        let store = Store::builder()
            .timeout(Duration::from_secs(2))
            .redis(&self.proxy.url())
            .unwrap();
        bucket(&store, on_end)
    }

    async fn state(&self) -> BucketState {
        let store = Store::builder()
            .timeout(SOON)
            .redis(&self.server.url())
            .unwrap();
        bucket(&store, OnEnd::Release).peek("k").await.unwrap()
    }

    /// Captures so many tokens: the call is held up, what is sent again is not, and then the call is carried out.
    async fn is_late(&self, tokens: u32, capture: impl AsyncFnOnce()) {
        self.proxy.hold_back();
        capture().await;
        eventually("the capture that is sent again", SOON, async || {
            self.state().await.held() == 0
        })
        .await;
        assert_eq!(self.state().await.remaining(), TOKENS - tokens);
        self.proxy.let_through();
        assert_eq!(
            self.state().await.remaining(),
            TOKENS - tokens,
            "it is charged once"
        );
    }
}

fn bucket(store: &Store, on_end: OnEnd) -> TokenBucket {
    TokenBucket::new(store, "tokens", Quota::per_day(1).burst(TOKENS))
        .unwrap()
        .with_on_end(on_end)
}

#[tokio::test]
async fn a_capture_or_a_drop_is_charged_once() {
    // More than is held would also be charged after the end of the hold.
    for (on_end, used) in [(OnEnd::Release, 7), (OnEnd::Capture, 17)] {
        for drops in [false, true] {
            let scene = Scene::set().await;
            let hold = scene.bucket(on_end).authorize("k", 10).await.unwrap();
            hold.usage().set(used);
            scene
                .is_late(used, async || match drops {
                    true => drop(hold),
                    false => assert!(hold.capture(used).await.is_err()),
                })
                .await;
        }
    }
}

/// Also if the answer comes when the capture would be sent again, or the store is shut down meanwhile.
#[tokio::test]
async fn what_was_used_beyond_the_end_of_a_hold_is_charged() {
    let scene = Scene::set().await;
    let store = Store::builder()
        .timeout(SOON)
        .redis(&scene.proxy.url())
        .unwrap();
    let bucket = bucket(&store, OnEnd::Release)
        .with_hold_ttl(Duration::from_millis(100))
        .unwrap();
    let hold = bucket.authorize("k", 10).await.unwrap();
    scene.proxy.stall();
    tokio::time::timeout(SOON, hold.lost()).await.unwrap();
    eventually("the end of the hold", SOON, async || {
        scene.state().await.held() == 0
    })
    .await;
    hold.usage().set(7);
    drop(hold);
    let unfinished = store.shutdown(Duration::from_millis(300)).await;
    assert!(
        unfinished.is_err_and(|error| error.is_unavailable()),
        "the capture is under way"
    );
    scene.proxy.let_through();
    let charged = async || scene.state().await.remaining() == TOKENS - 7;
    eventually("the charge", SOON, charged).await;
}

#[tokio::test]
async fn several_limits_are_charged_once() {
    for drops in [false, true] {
        let scene = Scene::set().await;
        let limits = TokenBuckets::new([scene.bucket(OnEnd::Release)]).unwrap();
        let hold = limits.authorize(["k"], 10).await.unwrap();
        scene
            .is_late(7, async || match drops {
                true => hold.usage()[0].set(7),
                false => assert!(hold.capture(7).await.is_err()),
            })
            .await;
    }
}
