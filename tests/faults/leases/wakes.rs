//! Messages that wake who waits are lost: the timers behind them serve everybody in time.

use std::time::Duration;

use deadpool_redis::Pool;
use futures::future::join_all;
use tokio::time::{Instant, interval, timeout};
use tower_distributed::Store;

use crate::leases::kinds::{Family, IN_TIME, LONG, SOON, open, subscribed, two_of_each, with_proxy};
use support::eventually;
use support::redis_server::RedisServer;

fn pool(server: &RedisServer) -> Pool {
    support::pools::pool(server.url())
}

/// The message goes to a connection that is just being killed. Once there is another, who waits asks by itself.
#[tokio::test]
async fn a_subscription_killed_before_a_release_holds_nobody_up() {
    let server = RedisServer::start().await;
    let kill = || assert!(server.query::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap() > 0);
    let [near, far] = two_of_each(&server);
    for round in 0..12 {
        for (near, far) in near.iter().zip(&far) {
            let holder = near.take("k").await.unwrap();
            let waiting = far.clone();
            let waiter =
                tokio::spawn(async move { waiting.take("k").await.unwrap().release().await.unwrap() });
            near.wait_for(&server, "k", 1).await;
            eventually("the subscription", SOON, async || subscribed(&server) == 1).await;
            // Before or after it is granted to the waiter.
            if round % 2 == 0 {
                kill();
            }
            let released = tokio::spawn(holder.release());
            if round % 2 == 1 {
                kill();
            }
            assert!(timeout(IN_TIME, waiter).await.expect("the waiter is forgotten").unwrap());
            assert!(released.await.unwrap().unwrap());
        }
    }
}

/// The connection stands, and carries nothing: waiters find by their beats what was granted to them, and so do those behind
/// them.
#[tokio::test]
async fn a_lost_message_costs_one_beat() {
    const BEHIND: u64 = 3;
    let (server, proxy) = with_proxy().await;
    let near = Family::each(&open(&server.url()), LONG);
    let far = Store::builder().wakeups(proxy.url()).pool(pool(&server)).unwrap();
    let far = Family::each(&far, LONG);
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for key in 0..8 {
        // One waits for each of the first keys, and a row for the last one.
        let count = if key == 7 { BEHIND } else { 1 };
        for (near, far) in near.iter().zip(&far) {
            let key = key.to_string();
            holders.push(near.take(key.as_str()).await.unwrap());
            for _ in 0..count {
                let (key, far) = (key.clone(), far.clone());
                waiters.push(tokio::spawn(async move {
                    let taken = far.take(&key).await.unwrap();
                    let served = Instant::now();
                    assert!(taken.release().await.unwrap());
                    served
                }));
            }
            near.wait_for(&server, &key, count).await;
        }
    }
    eventually("the subscription", SOON, async || subscribed(&server) == 1).await;
    proxy.stall();
    // At all phases of a beat.
    let mut every_90_ms = interval(Duration::from_millis(90));
    let mut released = Vec::new();
    for holder in holders {
        every_90_ms.tick().await;
        released.push(Instant::now());
        assert!(holder.release().await.unwrap());
    }
    let served = timeout(3 * IN_TIME, join_all(waiters)).await.expect("a waiter is forgotten");
    let served: Vec<_> = served.into_iter().map(Result::unwrap).collect();
    // Those of the last key are served one after the other.
    for (served, released) in served.iter().zip(&released[..7 * 3]) {
        let wait = *served - *released;
        assert!(wait < IN_TIME, "{wait:?}");
    }
    assert!(proxy.held_back() == 0, "the subscription was used for requests");
}
