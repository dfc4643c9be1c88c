//! Redis has lost its state.

use futures::future::join_all;
use tokio::time::{Duration, Instant, timeout};

use crate::leases::kinds::{Family, SOON, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(6);
const WAITERS: u64 = 4;

/// Who waited asks anew; who held is told so at the next renewal, long before the lease would have run out. Where only the
/// keys are deleted no connection breaks, so nobody hears of it but by asking.
#[tokio::test]
async fn a_loss_serves_who_waits_and_tells_who_holds() {
    for restarts in [true, false] {
        let server = RedisServer::start().await;
        let near = Family::each(&open(&server.url()), TTL);
        let far = Family::each(&open(&server.url()), TTL);
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        for (near, far) in near.iter().zip(far) {
            holders.push(near.take("k").await.unwrap());
            for _ in 0..WAITERS {
                let far = far.clone();
                waiters.push(tokio::spawn(async move {
                    far.take("k").await.unwrap().release().await
                }));
            }
        }
        let wait = async || {
            near.iter()
                .all(|near| near.waiting(&server, "k") == near.places(WAITERS))
        };
        eventually("all to wait", SOON, wait).await;
        match restarts {
            true => server.restart().await,
            false => assert_eq!(server.cli(&["FLUSHALL"]), "OK"),
        }
        let told = holders.into_iter().map(|holder| async move {
            timeout(SOON, holder.lost())
                .await
                .expect("nobody tells the holder");
            assert!(
                holder.until() > Instant::now(),
                "it was not told, its time ran out"
            );
            assert!(!holder.is_held());
            assert!(holder.extend().await.unwrap_err().is_lost());
            assert!(!holder.release().await.unwrap());
        });
        let (_, served) = tokio::join!(join_all(told), timeout(SOON, join_all(waiters)));
        for released in served.expect("a waiter is forgotten") {
            assert!(released.unwrap().unwrap());
        }
        assert_eq!(keys_without_ttl(&server), [""; 0]);
    }
}
