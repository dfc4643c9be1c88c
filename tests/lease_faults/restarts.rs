//! Redis has lost its state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout};

use crate::kinds::{Family, IN_TIME, SOON, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(6);
const WAITERS: u64 = 4;

#[tokio::test]
async fn a_restart_serves_who_waits_and_tells_who_holds() {
    after_a_loss(async |server| server.restart().await).await;
}

/// No connection breaks, so nobody hears of it but by asking.
#[tokio::test]
async fn a_flush_serves_who_waits_and_tells_who_holds() {
    after_a_loss(async |server| assert_eq!(server.cli(&["FLUSHALL"]), "OK")).await;
}

/// Who waited asks anew; who held is told so at the next renewal, long before the lease would have run out.
async fn after_a_loss(lose: impl AsyncFn(&RedisServer)) {
    let server = RedisServer::start().await;
    let near = Family::each(&open(&server.url()), TTL);
    let far = Family::each(&open(&server.url()), TTL);
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for (near, far) in near.iter().zip(far) {
        holders.push(near.take("k").await.unwrap());
        let held = Arc::new(AtomicBool::new(false));
        for _ in 0..WAITERS {
            let (far, held) = (far.clone(), held.clone());
            waiters.push(tokio::spawn(async move {
                let taken = far.take("k").await.unwrap();
                assert!(!held.swap(true, Ordering::SeqCst), "two hold {}", far.name());
                tokio::task::yield_now().await;
                held.store(false, Ordering::SeqCst);
                assert!(taken.release().await.unwrap());
            }));
        }
    }
    eventually("all to wait", SOON, async || {
        near.iter().all(|near| near.waiting(&server, "k") == near.places(WAITERS))
    })
    .await;
    let began = Instant::now();
    lose(&server).await;
    let told = holders.into_iter().map(|holder| async move {
        timeout(SOON, holder.lost()).await.expect("nobody tells the holder");
        assert!(holder.until() > Instant::now(), "it was not told, its time ran out");
        assert!(!holder.is_held());
        assert!(holder.extend().await.unwrap_err().is_lost());
        assert!(!holder.release().await.unwrap());
    });
    let (_, served) = tokio::join!(join_all(told), timeout(IN_TIME, join_all(waiters)));
    for waiter in served.expect("a waiter is forgotten") {
        waiter.unwrap();
    }
    println!("served and told within {:?}", began.elapsed());
    assert_eq!(keys_without_ttl(&server), [""; 0]);
}
