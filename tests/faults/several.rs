//! Several limits on two servers, which are asked one after the other, while replies are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets};

use support::patient;

use support::eventually;
use support::program::call_command;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);

/// A bucket that counts what is charged and never forgets it, seen through a network that loses replies and by one that does
/// not.
struct Limit {
    _server: RedisServer,
    proxy: FaultProxy,
    bucket: TokenBucket,
    referee: TokenBucket,
}

impl Limit {
    async fn new(name: &str, tokens: u32) -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let bucket = |store: &Store| TokenBucket::new(store, name, Quota::non_refilling(tokens)).unwrap();
        let seen = bucket(&Store::builder().timeout(SOON).redis(&proxy.url()).unwrap());
        let referee = bucket(&patient!(server.url()));
        Self { _server: server, proxy, bucket: seen, referee }
    }

    async fn charged(&self, tokens: u32) -> u32 {
        tokens - self.referee.peek("k").await.unwrap().remaining()
    }
}

/// What is charged for a request that another limit refuses is given back once, whatever replies are lost: never twice, since
/// then more would be admitted than the limit allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_limit_refuses_is_given_back_to_the_other_at_most_once() {
    const FIRST: u32 = 100_000;
    const SECOND: u32 = 300;
    const CALLS: u32 = 300;
    let both = Arc::new([Limit::new("first", FIRST).await, Limit::new("second", SECOND).await]);
    let [first, second] = &*both;
    let limits = TokenBuckets::new([first.bucket.clone(), second.bucket.clone()]).unwrap();
    let admitted = Arc::new(AtomicU32::new(0));
    let lost = Arc::new(AtomicU32::new(0));
    let caller = |_| {
        let (limits, both) = (limits.clone(), Arc::clone(&both));
        let (admitted, lost) = (Arc::clone(&admitted), Arc::clone(&lost));
        tokio::spawn(async move {
            for n in 0..CALLS {
                if n % 40 < 2 {
                    // Of a charge, or of what is given back.
                    both[n as usize % 2].proxy.drop_next_reply_after(call_command());
                }
                match limits.allow(["k", "k"]).await {
                    Ok(decision) if decision.is_admitted() => {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        assert!(error.is_unavailable(), "{error}");
                        lost.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        })
    };
    join_all((0..8).map(caller)).await.into_iter().for_each(|caller| caller.unwrap());
    let (admitted, lost) = (admitted.load(Ordering::Relaxed), lost.load(Ordering::Relaxed));
    assert!(lost > 0, "no reply was lost");
    assert!(admitted <= SECOND, "{admitted}");
    assert!(first.charged(FIRST).await >= admitted, "what was admitted is charged");
    // All that was refused is given back, but for replies that were lost: those of a batch are lost together.
    let refused = 8 * CALLS - admitted - lost;
    eventually("what was refused is given back", SOON, async || {
        first.charged(FIRST).await < admitted + lost + refused / 2
    })
    .await;
    assert!(first.charged(FIRST).await >= admitted);
    assert!(second.charged(SECOND).await >= admitted);
}

/// Nobody is left charged who goes away in between.
#[tokio::test]
async fn who_goes_away_in_between_is_given_back() {
    let (first, second) = (Limit::new("first", 10).await, Limit::new("second", 10).await);
    let limits = TokenBuckets::new([first.bucket.clone(), second.bucket.clone()]).unwrap();
    assert!(limits.allow(["k", "k"]).await.unwrap().is_admitted());
    second.proxy.stall();
    let mut asking = Box::pin(limits.allow(["k", "k"]));
    eventually("the first is charged", SOON, async || {
        assert!(futures::poll!(&mut asking).is_pending());
        first.charged(10).await == 2 && second.proxy.held_back() > 0
    })
    .await;
    drop(asking);
    eventually("it is given back", SOON, async || first.charged(10).await == 1).await;
    second.proxy.heal();
    eventually("and so is the second", SOON, async || second.charged(10).await == 1).await;
}

/// A limit in memory before one that all processes share.
#[tokio::test]
async fn limits_of_different_stores_go_together() {
    let shared = Limit::new("shared", 2).await;
    let own = TokenBucket::new(&Store::in_memory(), "own", Quota::non_refilling(5)).unwrap();
    let limits = TokenBuckets::new([own.clone(), shared.bucket.clone()]).unwrap();
    for _ in 0..2 {
        let decision = limits.allow(["a", "k"]).await.unwrap();
        assert!(decision.is_admitted());
        assert_eq!(decision.state.balances().count(), 2);
    }
    let refused = limits.allow(["a", "k"]).await.unwrap();
    assert_eq!(refused.refused_by(), Some("shared"));
    assert_eq!(own.peek("a").await.unwrap().remaining(), 3);
}
