//! Those of a process who do not stand in its line for a key, beside those who do; and what the line is handed.

use std::time::Duration;

use futures::poll;
use tokio::time::{Instant, timeout};
use tower_distributed::Mutex;

use crate::leases::kinds::{Family, LONG, SOON, open};
use support::eventually;
use support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn who_goes_away_leaves_its_own_place() {
    let server = RedisServer::start().await;
    let (store, far) = (open(&server.url()), open(&server.url()));
    let holder = Mutex::builder()
        .ttl(LONG)
        .build(&far, "m")
        .unwrap()
        .lock("k")
        .await
        .unwrap();
    let line = Mutex::new(&store, "m").unwrap();
    let strict = Mutex::builder().strict_fifo().build(&store, "m").unwrap();
    let queued = || server.query::<u64>(&["ZCARD", "td:{m:k}:waiters"]).unwrap();
    let waiter = tokio::spawn(async move { line.lock("k").await.unwrap() });
    eventually("the line to wait", SOON, async || queued() == 1).await;
    let alone = tokio::spawn(async move { drop(strict.lock("k").await) });
    eventually("who is alone to wait", SOON, async || queued() == 2).await;
    alone.abort();
    eventually("who is alone to leave", SOON, async || queued() == 1).await;
    assert!(!waiter.is_finished() && holder.unlock().await.unwrap());
    assert!(
        timeout(SOON, waiter)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap()
    );
}

/// A key that holds something else by now is no outage, which would be waited out.
#[tokio::test]
async fn the_line_hears_what_is_wrong_with_its_key() {
    let server = RedisServer::start().await;
    let store = open(&server.url());
    for is_strict in [true, false] {
        let builder = Mutex::builder().ttl(LONG);
        let builder = if is_strict {
            builder.strict_fifo()
        } else {
            builder
        };
        let mutex = builder.build(&store, "m").unwrap();
        let guard = mutex.lock("k").await.unwrap();
        let waiting = mutex.clone();
        let mut call = Box::pin(async move { waiting.lock("k").await });
        assert!(poll!(call.as_mut()).is_pending());
        let waiter = tokio::spawn(call);
        if is_strict {
            Family::Mutex(mutex.clone()).wait_for(&server, "k", 1).await;
        }
        // At once: a key that is missing meanwhile is free to be locked.
        assert_eq!(server.cli(&["HSET", "else", "a", "b"]), "1");
        assert_eq!(server.cli(&["RENAME", "else", "td:{m:k}:lock"]), "OK");
        drop(guard.unlock().await);
        // Within the process it may be handed on first, which is believed until it is renewed or given back.
        let heard = timeout(SOON, waiter)
            .await
            .expect("the line hears nothing")
            .unwrap();
        if let Ok(guard) = heard {
            drop(guard.unlock().await);
            assert!(
                timeout(SOON, mutex.lock("k"))
                    .await
                    .unwrap()
                    .unwrap_err()
                    .is_unavailable()
            );
        }
        server.cli(&["DEL", "td:{m:k}:lock", "td:{m:k}:waiters", "td:{m:k}:beats"]);
    }
}

/// What is handed on is believed in as its receiver wants it.
#[tokio::test]
async fn what_is_handed_on_allows_for_the_drift_that_was_asked_for() {
    let server = RedisServer::start().await;
    let store = open(&server.url());
    let usual = Mutex::builder().ttl(TTL).build(&store, "m").unwrap();
    let careful = Mutex::builder()
        .ttl(TTL)
        .drift_factor(0.5)
        .build(&store, "m")
        .unwrap();
    let guard = usual.lock("k").await.unwrap();
    let mut call = Box::pin(careful.lock("k"));
    assert!(poll!(call.as_mut()).is_pending());
    assert!(guard.unlock().await.unwrap());
    let guard = timeout(SOON, call).await.unwrap().unwrap();
    assert!(
        guard.until() <= Instant::now() + TTL / 2,
        "{:?}",
        guard.until() - Instant::now()
    );
    assert!(guard.unlock().await.unwrap());
}
