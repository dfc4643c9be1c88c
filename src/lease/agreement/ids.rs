//! Pushes reach their waiters, however many tokens a process has created.

use std::time::Duration;

use support::redis_server::RedisServer;
use support::{eventually, patient};

use crate::store::Store;
use crate::store::notifier::{Link, PushKind};
use crate::wait_group::WaitGroup;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_push_finds_its_waiter_after_many_tokens() {
    // The last one is the last of all ids, and the next one is the first id again.
    for nth in [1 << 32, (1 << 33) + 1, (1 << 43) + 3, (1 << 44) - 1] {
        let server = RedisServer::start().await;
        let [holder, waiter] = [(); 2].map(|()| patient!(server.url()));
        // The recipient of the waiter has the number 1, so ids are odd.
        let _other = WaitGroup::builder(1).build(&waiter, "other").unwrap();
        let permits =
            [&holder, &waiter].map(|store| WaitGroup::builder(1).build(store, "permits").unwrap());
        for n in 0..2 {
            let held = permits[0].add("k").await.unwrap();
            if n == 0 {
                waiter.notifier().skip_ids(nth);
            }
            let is_linked = async || waiter.notifier().current_link() != Link::Down;
            let waits = tokio::spawn({
                let permits = permits[1].clone();
                async move { permits.add("k").await }
            });
            eventually("the subscription", SOON, is_linked).await;
            let stands = async || {
                server
                    .query::<i64>(&["ZCARD", "td:{permits:k}:permits:waiters"])
                    .unwrap()
                    == 1
            };
            eventually("the waiter to stand in the queue", SOON, stands).await;
            assert!(held.done().await.unwrap());
            assert!(waits.await.unwrap().unwrap().done().await.unwrap());
            // The reply to a heartbeat may grant the lease to the waiter before the message arrives.
            let heard = async || waiter.notifier().was_delivered();
            eventually("the message of the grant", SOON, heard).await;
            let pushes = waiter.notifier().take_delivered();
            let id = ((nth + n) << 20) | 1;
            let is_grant = |news: &PushKind| matches!(news, PushKind::Granted { .. });
            assert!(
                pushes.len() == 1 && pushes[0].ids == [id] && is_grant(&pushes[0].news),
                "{pushes:?}"
            );
        }
    }
}
