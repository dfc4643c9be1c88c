//! Messages that wake who waits are lost: the timers behind them serve everybody in time.

use tokio::time::timeout;

use crate::leases::kinds::{SOON, subscribed, two_of_each};
use support::eventually;
use support::redis_server::RedisServer;

/// The message goes to a connection that is just being killed. Once there is another, who waits asks by itself.
#[tokio::test]
async fn a_subscription_killed_before_a_release_holds_nobody_up() {
    let server = RedisServer::start().await;
    let kill = || {
        assert!(
            server
                .query::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"])
                .unwrap()
                > 0
        )
    };
    let [near, far] = two_of_each(&server);
    for round in 0..12 {
        for (near, far) in near.iter().zip(&far) {
            let holder = near.take("k").await.unwrap();
            let waiting = far.clone();
            let waiter =
                tokio::spawn(
                    async move { waiting.take("k").await.unwrap().release().await.unwrap() },
                );
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
            assert!(
                timeout(SOON, waiter)
                    .await
                    .expect("the waiter is forgotten")
                    .unwrap()
            );
            assert!(released.await.unwrap().unwrap());
        }
    }
}
