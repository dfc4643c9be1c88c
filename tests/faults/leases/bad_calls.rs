//! Calls that ask for what is unusual, or cannot be.

use std::time::Duration;

use tokio::time::timeout;
use tower_distributed::{Mutex, RwLock, Store, WaitGroup};

use crate::leases::kinds::{SOON, left, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::redis_server::RedisServer;

async fn stores() -> (RedisServer, [Store; 2]) {
    let server = RedisServer::start().await;
    let redis = open(&server.url());
    (server, [Store::in_memory(), redis])
}

/// Also for who waits and is told by a message.
#[tokio::test]
async fn any_value_is_legal() {
    let (server, stores) = stores().await;
    let long = "x".repeat(100_000);
    let values = [
        " ", ":", "a:b c", "/1/2", "+", "\0", "\r\n", "ä", "%s", &long,
    ];
    for store in &stores {
        let others = Mutex::new(store, "x").unwrap();
        for value in values {
            let held = value.to_owned();
            let mutex = Mutex::builder()
                .value_with(move || held.clone())
                .build(store, "x")
                .unwrap();
            let guard = others.lock("k").await.unwrap();
            let waiter = tokio::spawn(async move { mutex.lock("k").await.unwrap() });
            tokio::task::yield_now().await;
            assert!(guard.unlock().await.unwrap());
            let guard = timeout(SOON, waiter)
                .await
                .expect("it is not woken")
                .unwrap();
            assert_eq!(guard.token(), value);
            assert!(others.try_lock("k").await.unwrap_err().is_refused());
            guard.extend().await.unwrap();
            assert!(guard.unlock().await.unwrap());
        }
    }
    assert_eq!(keys_without_ttl(&server), [""; 0]);
}

/// Waits of no time and of all time, queues of none, the largest weights: legal, and nothing panics.
#[tokio::test]
async fn extremes_are_legal() {
    let (server, stores) = stores().await;
    for store in stores {
        let permits = WaitGroup::new(&store, "extreme", u32::MAX).unwrap();
        let all = permits.add_n("k", u32::MAX).await.unwrap();
        assert_eq!(permits.count("k").await.unwrap(), u32::MAX);
        assert!(permits.try_add("k").await.unwrap_err().is_refused());
        let error = permits
            .with_max_wait(Duration::ZERO)
            .add("k")
            .await
            .unwrap_err();
        assert!(error.is_waited_too_long() && error.is_refused(), "{error}");
        let full = WaitGroup::builder(1)
            .max_waiters(0)
            .build(&store, "extreme")
            .unwrap();
        let error = full.add("k").await.unwrap_err();
        assert!(error.is_queue_full() && error.is_refused(), "{error}");
        assert!(all.done().await.unwrap());

        let for_ever = permits.with_max_wait(Duration::MAX);
        assert!(for_ever.add("k").await.unwrap().done().await.unwrap());
        for_ever.wait("k").await.unwrap();
        let lock = RwLock::builder()
            .max_wait(Duration::MAX)
            .most_writers(u32::MAX);
        let lock = lock.build(&store, "rw").unwrap();
        assert!(lock.write("k").await.unwrap().release().await.unwrap());
        let slow = Mutex::builder()
            .tries(u32::MAX)
            .retry_delay(|_| Duration::MAX)
            .max_wait(Duration::MAX);
        for slow in [
            slow.clone(),
            slow.exact_names(),
            Mutex::builder().retry_delay(|_| Duration::MAX),
        ] {
            let slow = slow.build(&store, "slow").unwrap();
            let guard = slow.lock("k").await.unwrap();
            // It waits for its next try, for ever.
            let wait = timeout(Duration::from_millis(20), slow.lock("k")).await;
            assert!(wait.is_err(), "{wait:?}");
            assert!(guard.unlock().await.unwrap());
            eventually("it to be free", SOON, async || {
                slow.try_lock("k").await.is_ok()
            })
            .await;
            eventually("it to be free", SOON, async || {
                !slow.is_locked("k").await.unwrap()
            })
            .await;
        }
    }
    eventually("nothing to be left", SOON, async || {
        left(&server, "k").is_empty()
    })
    .await;
    assert_eq!(keys_without_ttl(&server), [""; 0]);
}

/// Who asks more seldom than a waiter has to beat keeps its place all the same.
#[tokio::test]
async fn a_long_retry_delay_costs_no_place() {
    let (server, [_, redis]) = stores().await;
    let rare = Mutex::builder()
        .exact_names()
        .strict_fifo()
        .retry_delay(|_| Duration::MAX);
    let rare = rare.build(&redis, "x").unwrap();
    server.cli(&["SET", "k", "somebody else", "PX", "600000"]);
    let waiter = tokio::spawn(async move { rare.lock("k").await });
    let asked = || server.query::<u64>(&["ZCARD", "{k}:td:beats"]).unwrap();
    eventually("it to wait", SOON, async || asked() == 1).await;
    server.cli(&["DEL", "k"]);
    let guard = timeout(SOON, waiter)
        .await
        .expect("it does not ask")
        .unwrap()
        .unwrap();
    assert!(guard.unlock().await.unwrap());
}
