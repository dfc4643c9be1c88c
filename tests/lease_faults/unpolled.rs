//! A future that is not polled any more does not keep what it was granted from others.

use futures::future::join_all;
use futures::poll;
use tower_distributed::{Mutex, Store};

use crate::kinds::{Family, LONG, SOON, open};
use support::eventually;
use support::redis_server::RedisServer;

/// It asked for what was free.
#[tokio::test]
async fn the_answer_to_who_asks_is_not_taken_up() {
    let server = RedisServer::start().await;
    let near = Family::each(&open(&server.url()), LONG);
    // What is not taken up is given back after the time-out of a call.
    let far = Store::builder().timeout(SOON / 2).redis(&server.url()).unwrap();
    let far = Family::each(&far, LONG);
    join_all(near.iter().zip(&far).map(async |(near, far)| {
        // Its connection is there, so that the first poll sends.
        assert!(far.take("k").await.unwrap().release().await.unwrap());
        let mut forgotten = Box::pin(far.take("k"));
        assert!(poll!(forgotten.as_mut()).is_pending());
        eventually("it to hold", SOON, async || near.try_take("k").await.is_err()).await;
        eventually("it to be free", SOON, async || near.try_take("k").await.is_ok()).await;
        // Who is polled again asks anew.
        assert!(forgotten.await.unwrap().release().await.unwrap());
    }))
    .await;
}

/// It waited, and was granted what became free.
#[tokio::test]
async fn a_grant_is_not_taken_up() {
    let server = RedisServer::start().await;
    let near = Family::each(&open(&server.url()), LONG);
    let far = Family::each(&open(&server.url()), LONG);
    for (near, far) in near.iter().zip(&far) {
        let holder = near.take("k").await.unwrap();
        let mut forgotten = Box::pin(far.take("k"));
        eventually("it to wait", SOON, async || {
            assert!(poll!(forgotten.as_mut()).is_pending());
            near.waiting(&server, "k") == 1
        })
        .await;
        assert!(holder.release().await.unwrap());
        let next = tokio::time::timeout(SOON, near.take("k")).await.expect("it is kept by nobody").unwrap();
        assert!(next.release().await.unwrap());
        assert!(forgotten.await.unwrap().release().await.unwrap());
    }
}

/// It was next in line in its process.
#[tokio::test]
async fn what_is_handed_on_is_not_taken_up() {
    let server = RedisServer::start().await;
    for watchdog in [true, false] {
        let store = open(&server.url());
        let mutex = Mutex::builder().ttl(LONG).watchdog(watchdog).build(&store, "m").unwrap();
        let holder = mutex.lock("k").await.unwrap();
        let mut forgotten = Box::pin(mutex.lock("k"));
        assert!(poll!(forgotten.as_mut()).is_pending());
        let mut next = Box::pin(mutex.lock("k"));
        assert!(poll!(next.as_mut()).is_pending());
        assert!(holder.unlock().await.unwrap());
        let next = tokio::time::timeout(SOON, next).await.expect("it is kept by nobody").unwrap();
        assert!(next.unlock().await.unwrap());
        assert!(forgotten.await.unwrap().unlock().await.unwrap());
    }
}

/// Others of its process do not wait behind a future that asks for all of them and is not polled.
#[tokio::test]
async fn who_joins_does_not_wait_for_who_asks() {
    let server = RedisServer::start().await;
    let mutex = Mutex::builder().ttl(LONG).max_wait(SOON).build(&open(&server.url()), "m").unwrap();
    assert!(mutex.lock("k").await.unwrap().unlock().await.unwrap());
    let mut forgotten = Box::pin(mutex.lock("k"));
    assert!(poll!(forgotten.as_mut()).is_pending());
    let guard = mutex.lock("k").await.expect("it waits for a future that is not polled");
    assert!(guard.unlock().await.unwrap());
    assert!(forgotten.await.unwrap().unlock().await.unwrap());
}
