//! State in use outlives its next use, however seldom it is renewed: the tests shorten the time to live of its keys as if
//! most of it had passed, and the next step must prolong it.

use std::time::Duration;

use tower_distributed::WaitGroup;

use crate::kinds::{Family, LONG, SOON, open};
use support::eventually;
use support::redis_server::RedisServer;

/// How long a waiter counts as alive, and how long it may take to touch its place again, ms.
const ALIVE: i64 = 7_000 + 2_000;

const DAY: Duration = Duration::from_secs(86_400);

fn shorten(server: &RedisServer, key: &str, millis: i64) {
    assert_eq!(server.query::<i64>(&["PEXPIRE", key, &millis.to_string()]).unwrap(), 1, "{key}");
}

fn left(server: &RedisServer, key: &str) -> i64 {
    server.query(&["PTTL", key]).unwrap()
}

/// Waits that are shorter than the interval of the heartbeats do not renew the queue.
#[tokio::test]
async fn a_queue_that_is_never_empty_is_kept() {
    let server = RedisServer::start().await;
    // Three processes: the waiters for a mutex in the process of its holder take no place in the queue.
    let stores = [(); 3].map(|()| Family::each(&open(&server.url()), LONG));
    for (which, family) in stores[0].iter().enumerate() {
        let holder = family.take("k").await.unwrap();
        let keys = ["waiters", "beats"].map(|part| family.part("k", part));
        let mut waiters = Vec::new();
        for (at, others) in stores[1..].iter().enumerate() {
            if at > 0 {
                // Nearly a minute later.
                keys.iter().for_each(|key| shorten(&server, key, 1_500));
            }
            let waiter = others[which].clone();
            waiters.push(tokio::spawn(async move { waiter.take("k").await?.release().await }));
            let stands = async || family.waiting(&server, "k") == at as u64 + 1;
            eventually("the waiter to stand in the queue", SOON, stands).await;
            for key in &keys {
                assert!(left(&server, key) >= ALIVE, "{key}: {} ms", left(&server, key));
            }
        }
        assert!(holder.release().await.unwrap());
        for waiter in waiters {
            assert!(waiter.await.unwrap().unwrap());
        }
    }
}

/// Leases that end before their first renewal do not renew the set of holders.
#[tokio::test]
async fn the_holders_of_a_key_that_is_never_free_are_kept() {
    let server = RedisServer::start().await;
    let store = open(&server.url());
    let permits = WaitGroup::builder(2).ttl(DAY).watchdog(false).build(&store, "permits").unwrap();
    let holders = "td:{permits:k}:permits:holders";
    let lasts = |least: Duration| {
        let left = left(&server, holders);
        assert!(left >= least.as_millis() as i64, "{left} ms");
    };
    let first = permits.add("k").await.unwrap();
    shorten(&server, holders, 2_000);
    let second = permits.add("k").await.unwrap();
    lasts(DAY);

    // A waiter that is granted a permit.
    let waiter = tokio::spawn({
        let permits = permits.clone();
        async move { permits.add("k").await }
    });
    let waits = async || server.query::<i64>(&["ZCARD", "td:{permits:k}:permits:waiters"]).unwrap() == 1;
    eventually("a waiter", SOON, waits).await;
    shorten(&server, holders, 1_000);
    assert!(first.done().await.unwrap());
    lasts(Duration::from_millis(1_500));
    let third = waiter.await.unwrap().unwrap();
    assert_eq!(permits.count("k").await.unwrap(), 2);
    for permit in [second, third] {
        assert!(permit.done().await.unwrap());
    }
}
