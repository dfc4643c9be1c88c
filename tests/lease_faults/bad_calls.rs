//! Calls that ask for what cannot be, or hold what is not theirs any more.

use std::time::Duration;

use tokio::time::timeout;
use tower_distributed::{Mutex, RwLock, Store, WaitGroup};

use crate::kinds::{Family, IN_TIME, LONG, SOON, left, open};
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

#[tokio::test]
async fn values_must_say_something() {
    let (_server, stores) = stores().await;
    for store in stores {
        let mutex = Mutex::builder().value_with(String::new).build(&store, "x").unwrap();
        for error in [mutex.lock("k").await.unwrap_err(), mutex.try_lock("k").await.unwrap_err()] {
            assert!(error.is_invalid() && error.to_string().contains("empty"), "{error}");
        }
        // And may be whatever else there is, also for who waits and is told by a message.
        for value in [" ", ":", "a:b c", "/1/2", "+", "\0", "\r\n", "ä", "%s", &"x".repeat(100_000)] {
            let held = value.to_owned();
            let mutex = Mutex::builder().value_with(move || held.clone()).build(&store, "x").unwrap();
            let others = Mutex::new(&store, "x").unwrap();
            let holder = others.lock("k").await.unwrap();
            let waiter = tokio::spawn(async move { mutex.lock("k").await });
            tokio::task::yield_now().await;
            assert!(holder.unlock().await.unwrap());
            let guard = timeout(SOON, waiter).await.expect("it is not woken").unwrap().unwrap();
            assert_eq!(guard.token(), value);
            assert!(others.try_lock("k").await.unwrap_err().is_refused());
            guard.extend().await.unwrap();
            assert!(guard.unlock().await.unwrap());
        }
    }
}

/// Somebody has put another in our place: we cannot extend it, and our release leaves it alone.
#[tokio::test]
async fn what_is_not_ours_is_not_released() {
    let server = RedisServer::start().await;
    for family in Family::each_watched(&open(&server.url()), LONG, false) {
        for extended in [false, true] {
            let taken = family.take("k").await.unwrap();
            let name = family.holders("k");
            let holders = || match &family {
                Family::Mutex(_) => server.cli(&["GET", &name]),
                _ => server.cli(&["ZRANGE", &name, "0", "-1"]),
            };
            assert_eq!(holders(), taken.token());
            let another = taken.token().replacen(|c: char| c.is_ascii_hexdigit(), "x", 16);
            match &family {
                Family::Mutex(_) => server.cli(&["SET", &name, &another, "XX", "KEEPTTL"]),
                _ => {
                    let until = server.cli(&["ZSCORE", &name, taken.token()]);
                    server.cli(&["ZADD", &name, &until, &another]);
                    server.cli(&["ZREM", &name, taken.token()])
                }
            };
            if extended {
                let error = taken.extend().await.unwrap_err();
                assert!(error.is_lost() && error.to_string().contains("not held"), "{error}");
                assert!(!taken.is_held());
            }
            assert!(!taken.release().await.unwrap());
            assert_eq!(holders(), another);
            assert!(family.try_take("k").await.unwrap_err().is_refused());
            server.cli(&["DEL", &name]);
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
        let error = WaitGroup::builder(1).max_waiters(0).build(&store, "extreme").unwrap();
        let error = error.add("k").await.unwrap_err();
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

#[tokio::test]
async fn any_key_is_legal() {
    let (server, stores) = stores().await;
    let megabyte = "x".repeat(1 << 20);
    for store in stores {
        for family in Family::each(&store, LONG) {
            for key in ["", "\0", "{", "}", "{}", "}{", "{a}b", "a:b", "%7b", "%#", "*", "a b\r\n", &megabyte]
            {
                let taken = family.take(key).await.unwrap();
                assert!(family.try_take(key).await.unwrap_err().is_refused());
                let waiter = tokio::spawn({
                    let (family, key) = (family.clone(), key.to_owned());
                    async move { family.take(&key).await.unwrap().release().await.unwrap() }
                });
                tokio::task::yield_now().await;
                taken.extend().await.unwrap();
                assert!(taken.release().await.unwrap());
                assert!(timeout(SOON, waiter).await.expect("it is not woken").unwrap());
            }
        }
    }
    assert_eq!(keys_without_ttl(&server), [""; 0]);
}
