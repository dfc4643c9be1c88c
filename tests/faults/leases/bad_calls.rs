//! Calls that ask for what is unusual, or cannot be.

use std::time::Duration;

use tokio::time::timeout;
use tower_distributed::{Mutex, RwLock, Store, WaitGroup};

use crate::leases::kinds::{Family, IN_TIME, LONG, SOON, left, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::redis_server::RedisServer;

async fn stores() -> (RedisServer, [Store; 2]) {
    let server = RedisServer::start().await;
    let redis = open(&server.url());
    (server, [Store::in_memory(), redis])
}

#[tokio::test]
async fn exact_names_must_leave_room_beside_them() {
    let (_server, stores) = stores().await;
    for store in stores {
        let alone = Mutex::builder().exact_names().build(&store, "x").unwrap();
        let quorum = Mutex::builder().exact_names().build_quorum([store], "x").unwrap();
        for mutex in [alone, quorum] {
            for name in ["", "a}b", "{}x", "}", "{a}:td:waiters", "a:td:"] {
                for error in [mutex.lock(name).await.unwrap_err(), mutex.try_lock(name).await.unwrap_err()] {
                    let text = error.to_string();
                    assert!(error.is_invalid() && text.contains(&format!("\"{name}\"")), "{text}");
                    assert!(text.contains("empty") && text.contains("hash tag"), "{text}");
                }
            }
            for name in ["a", "{a}b", "a{", "\0"] {
                assert!(mutex.lock(name).await.unwrap().unlock().await.unwrap());
            }
        }
    }
}

/// Also for who waits and is told by a message. A value must say something.
#[tokio::test]
async fn any_key_and_any_value_is_legal() {
    let (server, stores) = stores().await;
    // All stores of these tests share a thread, which digests each long key some times.
    let long = "x".repeat(100_000);
    let keys = ["", "\0", "{", "}", "{}", "}{", "{a}b", "a:b", "%7b", "%#", "*", "a b\r\n", &long];
    let values = [" ", ":", "a:b c", "/1/2", "+", "\0", "\r\n", "ä", "%s", &long];
    for store in &stores {
        let nameless = Mutex::builder().value_with(String::new).build(store, "x").unwrap();
        for error in [nameless.lock("k").await.unwrap_err(), nameless.try_lock("k").await.unwrap_err()] {
            assert!(error.is_invalid() && error.to_string().contains("empty"), "{error}");
        }
        let plain = Family::each(store, LONG).into_iter();
        let plain =
            plain.flat_map(|family| keys.map(|key| (family.clone(), family.clone(), key, None::<&str>)));
        let with_value = values.map(|value| {
            let held = value.to_owned();
            let mutex = Mutex::builder().value_with(move || held.clone()).build(store, "x").unwrap();
            let others = Mutex::new(store, "x").unwrap();
            (Family::Mutex(others), Family::Mutex(mutex), "k", Some(value))
        });
        for (first, next, key, value) in plain.chain(with_value) {
            let taken = first.take(key).await.unwrap();
            assert!(first.try_take(key).await.unwrap_err().is_refused());
            let waiting = key.to_owned();
            let waiter = tokio::spawn(async move { next.take(&waiting).await.unwrap() });
            tokio::task::yield_now().await;
            taken.extend().await.unwrap();
            assert!(taken.release().await.unwrap());
            let taken = timeout(SOON, waiter).await.expect("it is not woken").unwrap();
            assert!(value.is_none_or(|value| taken.token() == value));
            assert!(first.try_take(key).await.unwrap_err().is_refused());
            taken.extend().await.unwrap();
            assert!(taken.release().await.unwrap());
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
        let error = permits.with_max_wait(Duration::ZERO).add("k").await.unwrap_err();
        assert!(error.is_waited_too_long() && error.is_refused(), "{error}");
        let full = WaitGroup::builder(1).max_waiters(0).build(&store, "extreme").unwrap();
        let error = full.add("k").await.unwrap_err();
        assert!(error.is_queue_full() && error.is_refused(), "{error}");
        assert!(all.done().await.unwrap());

        let for_ever = permits.with_max_wait(Duration::MAX);
        assert!(for_ever.add("k").await.unwrap().done().await.unwrap());
        for_ever.wait("k").await.unwrap();
        let lock = RwLock::builder().max_wait(Duration::MAX).most_writers(u32::MAX);
        let lock = lock.build(&store, "rw").unwrap();
        assert!(lock.write("k").await.unwrap().release().await.unwrap());
        let slow = Mutex::builder().tries(u32::MAX).retry_delay(|_| Duration::MAX).max_wait(Duration::MAX);
        for slow in [slow.clone(), slow.exact_names(), Mutex::builder().retry_delay(|_| Duration::MAX)] {
            let slow = slow.build(&store, "slow").unwrap();
            let guard = slow.lock("k").await.unwrap();
            // It waits for its next try, for ever.
            let wait = timeout(Duration::from_millis(20), slow.lock("k")).await;
            assert!(wait.is_err(), "{wait:?}");
            assert!(guard.unlock().await.unwrap());
            eventually("it to be free", SOON, async || slow.try_lock("k").await.is_ok()).await;
            eventually("it to be free", SOON, async || !slow.is_locked("k").await.unwrap()).await;
        }
    }
    eventually("nothing to be left", SOON, async || left(&server, "k").is_empty()).await;
    assert_eq!(keys_without_ttl(&server), [""; 0]);
}

/// Who asks more seldom than a waiter has to beat keeps its place all the same.
#[tokio::test]
async fn a_long_retry_delay_costs_no_place() {
    let (server, [_, redis]) = stores().await;
    let rare = Mutex::builder().exact_names().strict_fifo().retry_delay(|_| Duration::MAX);
    let rare = rare.build(&redis, "x").unwrap();
    server.cli(&["SET", "k", "somebody else", "PX", "600000"]);
    let waiter = tokio::spawn(async move { rare.lock("k").await });
    let asked = || server.query::<u64>(&["ZCARD", "{k}:td:beats"]).unwrap();
    eventually("it to wait", SOON, async || asked() == 1).await;
    server.cli(&["DEL", "k"]);
    let guard = timeout(IN_TIME, waiter).await.expect("it does not ask").unwrap().unwrap();
    assert!(guard.unlock().await.unwrap());
}
