//! Sentinel names another master, while the former one still serves as a master.

use std::time::Duration;

use tower_distributed::{Mutex, Quota, Store, TokenBucket};

use support::eventually;
use support::program::since_7_0;
use support::redis_server::RedisServer;
use support::requires;
use support::sentinel::Sentinel;

const SOON: Duration = Duration::from_secs(20);

/// A Sentinel, which demotes a former master no sooner than 40 s after the announcement: what happens while it is a master is due
/// to the announcement.
async fn slow_to_demote() -> Sentinel {
    let sentinel = Sentinel::start().await;
    sentinel
        .sentinel()
        .cli(&["SENTINEL", "DEBUG", "publish-period", "10000"]);
    sentinel
}

fn store(sentinel: &Sentinel) -> Store {
    Store::builder()
        .sentinel(sentinel.sentinel_urls(), sentinel.service_name())
        .unwrap()
}

fn is_master(server: &RedisServer) -> bool {
    server
        .cli(&["INFO", "replication"])
        .contains("role:master\r\n")
}

/// How many operations a server has been asked to run.
fn asked(server: &RedisServer) -> String {
    let stats = server.cli(&["INFO", "commandstats"]);
    stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval") || line.starts_with("cmdstat_fcall"))
        .map(|line| line.split(',').next().unwrap())
        .collect()
}

/// Whether it is asked to run a call.
async fn is_asked(server: &RedisServer, bucket: &TokenBucket) -> bool {
    let before = asked(server);
    let _ = bucket.allow("k").await;
    asked(server) != before
}

fn subscriptions(server: &RedisServer) -> usize {
    server
        .query::<Vec<String>>(&["PUBSUB", "CHANNELS", "td:wake:*"])
        .unwrap()
        .len()
}

#[test]
fn all_connections_leave_a_master_that_sentinel_no_longer_names() {
    requires!(since_7_0());
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (one, other) = (runtime(), runtime());
    let sentinel = one.block_on(slow_to_demote());
    let store = store(&sentinel);
    let bucket = TokenBucket::new(&store, "switch", Quota::per_hour(1).burst(100_000)).unwrap();
    // The connection of the background thread, and the subscription.
    let mutex = Mutex::new(&store, "switch").unwrap();
    for turn in 0..2 {
        let guard = one.block_on(async {
            let guard = mutex.try_lock("k").await.unwrap();
            let waiting = mutex.clone();
            let waiter =
                tokio::spawn(async move { waiting.lock("k").await.unwrap().unlock().await });
            eventually("the subscription", SOON, async || {
                subscriptions(sentinel.master()) > 0
            })
            .await;
            waiter.abort();
            guard
        });
        let callers = [&one, &other].map(|runtime| {
            let bucket = bucket.clone();
            runtime.spawn(async move {
                loop {
                    // Calls in flight at the switch fail.
                    let _ = bucket.allow(turn).await;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        });
        let old = sentinel.master();
        let key = format!("td:{{switch:{turn}}}:tat");
        one.block_on(async {
            eventually("the callers to be served", SOON, async || {
                old.query(&["EXISTS", &key]) == Ok(1)
            })
            .await;
            sentinel.failover().await;
            let new = sentinel.master();
            assert_ne!(new.port(), old.port());
            eventually("the old master to be left", SOON, async || {
                let before = (asked(old), asked(new));
                tokio::time::sleep(Duration::from_millis(100)).await;
                asked(old) == before.0 && asked(new) != before.1
            })
            .await;
            eventually("the subscription to move", SOON, async || {
                subscriptions(old) == 0 && subscriptions(new) > 0
            })
            .await;
            assert!(is_master(old), "it was demoted, so this shows nothing");
            // Renewals and releases of the background thread go to the new one.
            drop(guard);
            eventually("the release", SOON, async || {
                new.query(&["EXISTS", "td:{switch:k}:lock"]) == Ok(0)
            })
            .await;
        });
        callers.iter().for_each(|caller| caller.abort());
        one.block_on(async {
            sentinel
                .sentinel()
                .cli(&["SENTINEL", "DEBUG", "publish-period", "100"]);
            sentinel.settled().await;
            sentinel
                .sentinel()
                .cli(&["SENTINEL", "DEBUG", "publish-period", "10000"]);
        });
    }
}

/// A call at a master that stands still fails when another one is named, and not after its timeout. What the former
/// master would answer later is not believed.
#[tokio::test]
async fn calls_under_way_at_the_former_master_end_with_the_announcement() {
    requires!(since_7_0());
    let sentinel = slow_to_demote().await;
    let builder = Store::builder().timeout(Duration::from_secs(60));
    let store = builder
        .sentinel(sentinel.sentinel_urls(), sentinel.service_name())
        .unwrap();
    let mutex = Mutex::new(&store, "stuck").unwrap();
    assert!(
        mutex
            .try_lock("before")
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap()
    );
    let old = sentinel.master();
    old.pause();
    let stuck = {
        let mutex = mutex.clone();
        tokio::spawn(async move {
            mutex
                .try_lock("k")
                .await
                .map(|guard| (guard.fence(), guard))
        })
    };
    sentinel.failover().await;
    let outcome = tokio::time::timeout(SOON, stuck)
        .await
        .expect("it waits for the old master")
        .unwrap();
    let new = sentinel.master();
    match outcome {
        // It was sent again, since the connection had been idle.
        Ok(_guard) => assert_eq!(new.query(&["EXISTS", "td:{stuck:k}:lock"]), Ok(1)),
        Err(error) => assert!(error.is_unavailable(), "{error}"),
    }
    old.resume();
    assert!(is_master(old));
    for turn in 0..50 {
        let guard = mutex.try_lock(turn).await.unwrap();
        assert_eq!(
            new.query(&["EXISTS", &format!("td:{{stuck:{turn}}}:lock")]),
            Ok(1)
        );
        assert!(guard.unlock().await.unwrap());
    }
    // The call that was stuck runs there now; nothing else does.
    assert!(is_master(old));
    assert_eq!(old.query(&["EXISTS", "td:{stuck:49}:fence"]), Ok(0));
}

/// A message can be lost, or not be allowed: the Sentinels are also asked at an interval.
#[tokio::test]
async fn a_switch_without_a_message_is_noticed() {
    requires!(since_7_0());
    let sentinel = slow_to_demote().await;
    sentinel
        .sentinel()
        .cli(&["ACL", "SETUSER", "default", "-subscribe", "-psubscribe"]);
    let bucket =
        TokenBucket::new(&store(&sentinel), "silent", Quota::per_hour(1).burst(1000)).unwrap();
    bucket.allow("k").await.unwrap();
    let old = sentinel.master();
    sentinel.failover().await;
    let new = sentinel.master();
    eventually("the new master to be used", SOON, async || {
        is_asked(new, &bucket).await
    })
    .await;
    assert!(is_master(old), "it was demoted, so this shows nothing");
}

/// A Sentinel that slept through the failover names the former master, and is not believed.
#[tokio::test]
async fn a_sentinel_that_is_behind_is_not_believed() {
    requires!(since_7_0());
    let sentinel = slow_to_demote().await;
    let name = sentinel.service_name();
    let config = format!(
        "sentinel monitor {name} 127.0.0.1 {} 1\nsentinel failover-timeout {name} 60000\n",
        sentinel.master().port()
    );
    let sleeper = RedisServer::launch(|| config.clone(), &["--sentinel"]).await;
    let urls = [sleeper.url(), sentinel.sentinel().url()];
    let store = Store::builder().sentinel(urls, name).unwrap();
    let bucket = TokenBucket::new(&store, "behind", Quota::per_hour(1).burst(1000)).unwrap();
    bucket.allow("k").await.unwrap();
    let old = sentinel.master();
    sleeper.pause();
    sentinel.failover().await;
    let new = sentinel.master();
    eventually("the new master to be used", SOON, async || {
        is_asked(new, &bucket).await
    })
    .await;
    let before = asked(old);
    sleeper.resume();
    // New connections ask the Sentinels, too.
    for _ in 0..20 {
        new.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let _ = bucket.allow("k").await;
        assert!(bucket.allow("k").await.is_ok());
    }
    assert_eq!(asked(old), before, "it went back to the old master");
    assert!(is_master(old), "it was demoted, so this shows nothing");
}

/// Sentinels that are down keep nobody from the master that they have named.
#[tokio::test]
async fn the_master_is_kept_while_no_sentinel_answers() {
    requires!(since_7_0());
    let sentinel = Sentinel::start().await;
    let bucket =
        TokenBucket::new(&store(&sentinel), "alone", Quota::per_hour(1).burst(1000)).unwrap();
    bucket.allow("k").await.unwrap();
    let master = sentinel.master();
    sentinel.sentinel().pause();
    for _ in 0..2 {
        master.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        eventually("a new connection", SOON, async || {
            bucket.allow("k").await.is_ok()
        })
        .await;
    }
    sentinel.sentinel().resume();
}
