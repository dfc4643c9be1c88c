//! What counts as an outage, for whom, and what is told of it.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::net::TcpListener;
use tower::{ServiceExt as _, service_fn};
use tower_distributed::operator::Operator;
use tower_distributed::{
    BreakerState, Mutex, Quota, RateLimitLayer, Store, StoreFailure, StoreStats, TokenBucket,
};
use tower_layer::Layer as _;

use crate::scene::{SOON, TIMEOUT, impatient, is_served, open, wide_bucket};
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::{eventually, patient};

const CALLERS: usize = 256;
const KILLS: usize = 6;

fn kill_connections(server: &RedisServer) {
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
}

/// Defect 4: up to 3 086 calls failed. Callers call again as soon as they are answered, so that a breaker that opens, or stays
/// open, fails many more calls than were in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_killed_connection_fails_only_the_calls_in_flight() {
    let server = RedisServer::start().await;
    let bucket = wide_bucket(&open(&server.url()));
    let stop = Arc::<AtomicBool>::default();
    let [answered, failed] = [(); 2].map(|()| Arc::<AtomicU64>::default());
    let callers = (0..CALLERS).map(|caller| {
        let (bucket, stop) = (bucket.clone(), stop.clone());
        let (answered, failed) = (answered.clone(), failed.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                match bucket.allow(caller.to_string()).await {
                    Ok(decision) => {
                        assert!(decision.is_admitted(), "an outage was told as a refusal");
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        assert!(error.is_unavailable(), "{error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                        tokio::task::yield_now().await;
                    }
                }
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let more = async || {
        let wanted = answered.load(Ordering::Relaxed) + 5_000;
        eventually("answers", SOON, async || {
            answered.load(Ordering::Relaxed) >= wanted
        })
        .await;
        failed.load(Ordering::Relaxed)
    };
    let mut failures = vec![more().await];
    for _ in 0..KILLS {
        kill_connections(&server);
        failures.push(more().await);
    }
    failures.push(more().await);
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let after_each: Vec<_> = failures.windows(2).map(|two| two[1] - two[0]).collect();
    let most = *after_each.iter().max().unwrap();
    assert!(
        most <= 2 * CALLERS as u64,
        "{CALLERS} calls were in flight, so many failed: {after_each:?}"
    );
}

/// A server that stands still is an outage for a whole crowd, within the time of a call: fail open admits all of it, and later
/// ones without a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_server_reaches_fail_open() {
    let server = RedisServer::start().await;
    let store = Store::redis(&server.url()).unwrap();
    let bucket = wide_bucket(&store);
    eventually("the first answer", SOON, async || {
        is_served(&bucket.allow("warm").await)
    })
    .await;
    let layer = RateLimitLayer::new(bucket.clone(), |key: &u64| *key);
    let layer = layer.on_store_failure(StoreFailure::FailOpen);
    let service = layer.layer(service_fn(async |_: u64| Ok::<_, std::io::Error>(())));
    server.pause();
    let crowd = async || {
        let requests = join_all((0..CALLERS as u64).map(|key| service.clone().oneshot(key)));
        let calls = join_all((0..CALLERS as u64).map(|key| bucket.allow(key)));
        let all = tokio::time::timeout(SOON, async { tokio::join!(requests, calls) }).await;
        let (requests, calls) = all.expect("they wait for each other");
        assert!(
            requests.iter().all(Result::is_ok),
            "fail open is not reached"
        );
        let errors: Vec<_> = calls.into_iter().map(Result::unwrap_err).collect();
        assert!(
            errors
                .iter()
                .all(|error| error.is_unavailable() || error.is_overloaded())
        );
        errors
    };
    crowd().await;
    eventually("a crowd to pass without a call", SOON, async || {
        crowd()
            .await
            .iter()
            .all(|error| error.to_string().contains("no call made"))
    })
    .await;
    server.resume();
}

/// Defect 4: an error of one key, or of one script, is no outage.
#[tokio::test]
async fn noperm_does_not_open_the_breaker() {
    let rules: [&[&str]; 2] = [
        &["~td:{wide:*"],
        &[
            "~*", "-incrby", "-incr", "-zadd", "-zcard", "-exists", "-pttl",
        ],
    ];
    for rules in rules {
        let server = RedisServer::start().await;
        let user = [
            "ACL", "SETUSER", "limited", "reset", "on", ">secret", "&*", "+@all",
        ];
        server.cli(&[&user[..], rules].concat());
        let store = open(&format!(
            "redis://limited:secret@127.0.0.1:{}",
            server.port()
        ));
        let (mutex, allowed) = (Mutex::new(&store, "denied").unwrap(), wide_bucket(&store));
        for _ in 0..10 {
            let outcome = allowed.allow("k").await;
            assert!(is_served(&outcome), "{outcome:?}");
            for key in 0..5 {
                assert!(
                    mutex.try_lock(key).await.is_err(),
                    "locks need none of the commands: {rules:?}"
                );
            }
        }
    }
}

/// Connecting has a time-out of its own, so a time-out below its round trips does no harm.
#[tokio::test]
async fn connecting_may_take_longer_than_a_call() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    proxy.stall();
    let bucket = wide_bucket(&patient!().timeout(TIMEOUT).redis(&proxy.url()).unwrap());
    let began = Instant::now();
    let connects = async {
        eventually("the time of a call to pass", SOON, async || {
            began.elapsed() > TIMEOUT * 5 / 4
        })
        .await;
        proxy.heal();
    };
    let (outcomes, ()) = tokio::join!(join_all((0..50).map(|key| bucket.allow(key))), connects);
    assert!(
        outcomes.iter().all(is_served),
        "{:?}",
        outcomes.iter().find(|outcome| !is_served(outcome))
    );
}

/// A server that accepts connections and answers nothing: a call takes one time-out of a connection, not one after the other.
#[tokio::test]
async fn a_call_tries_to_connect_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let limit = Duration::from_millis(300);
    let bucket = wide_bucket(&patient!().connect_timeout(limit).redis(&url).unwrap());
    let (began, mut accepted) = (Instant::now(), Vec::new());
    let mut call = pin!(tokio::time::timeout(SOON, bucket.allow("k")));
    let outcome = loop {
        tokio::select! {
            outcome = &mut call => break outcome.expect("connecting takes longer than its time-out"),
            connection = listener.accept() => accepted.push(connection.unwrap()),
        }
    };
    assert!(outcome.is_err_and(|error| error.is_unavailable()) && began.elapsed() >= limit);
    assert_eq!(accepted.len(), 1, "connections for one call");
}

/// Also where nobody else makes a call.
#[tokio::test]
async fn a_ping_tells_of_the_server_and_its_outages() {
    let server = RedisServer::start().await;
    let store = impatient(&server.url());
    assert_eq!(store.stats().server_version, None, "not connected yet");
    assert!(!store.ping().await.unwrap().is_zero());
    let (info, stats) = (server.cli(&["INFO", "server"]), store.stats());
    let version = |name| info.lines().find_map(|line| line.strip_prefix(name));
    assert_eq!(
        stats.server_version.as_deref(),
        version("valkey_version:").or(version("redis_version:"))
    );
    assert_eq!(stats.breaker, BreakerState::Closed);
    server.kill9();
    // Until the breaker is open, and then some.
    for _ in 0..10 {
        assert!(
            wide_bucket(&store)
                .allow("k")
                .await
                .unwrap_err()
                .is_unavailable()
        );
    }
    assert_ne!(store.stats().breaker, BreakerState::Closed);
    let error = store.ping().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    server.restart().await;
    eventually("the ping to be answered", SOON, async || {
        store.ping().await.is_ok()
    })
    .await;
    assert_eq!(store.stats().breaker, BreakerState::Closed);
    eventually("an answer", SOON, async || {
        is_served(&wide_bucket(&store).allow("k").await)
    })
    .await;
}

/// Operations that wait, and those that have left, in fewer batches.
#[tokio::test]
async fn a_store_counts_what_it_sends() {
    const MANY: u64 = 1_000;
    let server = RedisServer::start().await;
    let store = open(&server.url());
    let bucket = wide_bucket(&store);
    assert!(is_served(&bucket.allow("warm").await));
    let stats = store.stats();
    assert_eq!((stats.queued, stats.operations, stats.batches), (0, 1, 1));
    let mut calls = pin!(join_all((0..MANY).map(|key| bucket.allow(key))));
    // The first call leaves at once. The others are sent by a task that has not run yet.
    assert!(futures::poll!(&mut calls).is_pending());
    assert_eq!(store.stats().queued, MANY - 1);
    assert!(calls.await.iter().all(is_served));
    let stats = store.stats();
    assert_eq!((stats.queued, stats.operations), (0, 1 + MANY));
    assert!(stats.batches < MANY / 10, "{stats:?}");
    assert_eq!(Store::in_memory().stats(), StoreStats::default());
}

/// A scan that an outage has stopped begins again at the same server: nothing is left out.
#[tokio::test]
async fn a_scan_goes_on_after_an_outage() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let bucket = TokenBucket::new(&open(&server.url()), "x", Quota::per_hour(5)).unwrap();
    assert!(
        join_all((0..3000_u32).map(|key| bucket.allow(key)))
            .await
            .iter()
            .all(Result::is_ok)
    );
    let operator = Operator::new(&impatient(&proxy.url()));
    let (mut scan, mut entries) = (operator.scan(), BTreeSet::new());
    entries.extend(scan.next().await.unwrap().unwrap());
    assert!(entries.len() < 3000, "one page is not all");
    proxy.cut();
    let error = scan.next().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    proxy.heal();
    eventually("the next page", SOON, async || match scan.next().await {
        Ok(page) => {
            entries.extend(page.unwrap());
            true
        }
        Err(_) => false,
    })
    .await;
    while let Some(page) = scan.next().await.unwrap() {
        entries.extend(page);
    }
    assert_eq!(entries.len(), 3000);
}
