//! Locks that hold a value of the user's: the value is for others to read, and does not make two holders one.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tower_distributed::mutex::MutexBuilder;
use tower_distributed::{Mutex, Store};

use crate::kinds::{LONG, SOON, open};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

fn named(value: &'static str) -> MutexBuilder {
    Mutex::builder().ttl(LONG).value_with(move || value.into())
}

/// A release without an answer is sent again; the first copy of it comes when the value is locked anew.
#[tokio::test]
async fn a_late_release_leaves_the_next_lock_of_the_value_alone() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let far = Store::builder().timeout(Duration::from_millis(300)).redis(&proxy.url()).unwrap();
    let mutex = named("worker-1").build(&far, "m").unwrap();
    let others = Mutex::new(&open(&server.url()), "m").unwrap();
    let guard = mutex.lock("k").await.unwrap();
    proxy.hold_back();
    assert!(guard.unlock().await.unwrap_err().is_unavailable());
    let mut next = None;
    eventually("the next lock", SOON, async || {
        next = mutex.lock("k").await.ok();
        next.is_some()
    })
    .await;
    let next = next.unwrap();
    assert!(proxy.held_back() > 0, "nothing is late");
    proxy.let_through();
    assert!(others.try_lock("k").await.unwrap_err().is_refused(), "two hold it");
    assert!(next.is_held() && next.unlock().await.unwrap());
}

/// Two processes, of which each believes that the value is its own.
#[tokio::test]
async fn a_value_of_two_processes_is_granted_once() {
    let server = RedisServer::start().await;
    let [one, other] = [(); 2].map(|()| named("worker-1").build(&open(&server.url()), "m").unwrap());
    let first = one.lock("k").await.unwrap();
    assert!(other.try_lock("k").await.unwrap_err().is_refused(), "two hold it");
    let waiter = {
        let other = other.clone();
        tokio::spawn(async move { other.lock("k").await.unwrap() })
    };
    let beats = || server.query::<u64>(&["ZCARD", "td:{m:k}:beats"]).unwrap();
    eventually("it to wait", SOON, async || beats() == 1).await;
    first.extend().await.unwrap();
    let fence = first.fence();
    assert!(first.unlock().await.unwrap());
    let second = timeout(SOON, waiter).await.unwrap().unwrap();
    assert!(second.fence() > fence, "{} after {fence}", second.fence());
    assert!(other.is_locked("k").await.unwrap() && second.unlock().await.unwrap());
}

#[tokio::test]
async fn a_value_of_two_quorums_is_granted_once() {
    let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let [a, b, c] = servers.each_ref().map(|server| open(&server.url()));
    let one = named("worker-1").build_quorum([a.clone(), b.clone(), c.clone()], "m").unwrap();
    let other = named("worker-1").build_quorum([b, c, a], "m").unwrap();
    let first = one.lock("k").await.unwrap();
    assert!(other.try_lock("k").await.is_err(), "two hold it");
    assert!(first.is_held() && first.unlock().await.unwrap());
}

/// With one node gone, a majority can lock and unlock as before.
#[tokio::test]
async fn a_value_is_free_again_though_a_node_is_gone() {
    let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let nodes = servers.each_ref().map(|server| open(&server.url()));
    let mutex = named("worker-1").build_quorum(nodes, "m").unwrap();
    assert!(mutex.lock("k").await.unwrap().unlock().await.unwrap());
    servers[2].kill9();
    for _ in 0..3 {
        let began = Instant::now();
        drop(timeout(SOON, mutex.lock("k")).await.expect("it waits for a node that is gone").unwrap());
        assert!(began.elapsed() < LONG / 4);
    }
}

/// Every call ends within its own bound, also where the last release of the value has no answer.
#[tokio::test]
async fn a_value_is_not_waited_for_without_bound() {
    let server = RedisServer::start().await;
    let store = Store::builder().timeout(Duration::from_millis(300)).redis(&server.url()).unwrap();
    let mutex = named("worker-1").max_wait(Duration::from_millis(300)).build(&store, "m").unwrap();
    let guard = mutex.lock("k").await.unwrap();
    server.pause();
    drop(guard);
    assert!(timeout(SOON, mutex.try_lock("k")).await.expect("try_lock waits").is_err());
    assert!(timeout(SOON, mutex.lock("k")).await.expect("lock waits for too long").is_err());
    mutex.close();
    assert!(timeout(SOON, mutex.lock("k")).await.expect("a closed mutex waits").is_err());
    server.resume();
}

/// Tokens carry a time to live that their locks are cut to. Values do not.
#[tokio::test]
async fn a_value_that_looks_like_a_token_is_none() {
    let server = RedisServer::start().await;
    for store in [open(&server.url()), Store::in_memory()] {
        for value in ["billing-service--1.5", "0123456789abcdef-1.5"] {
            let guard = named(value).build(&store, "m").unwrap().lock("k").await.unwrap();
            let others = Mutex::new(&store, "m").unwrap();
            let until = Instant::now() + Duration::from_millis(50);
            eventually("some tries", SOON, async || {
                assert!(others.try_lock("k").await.unwrap_err().is_refused(), "two hold it");
                Instant::now() > until
            })
            .await;
            assert!(guard.is_held() && guard.unlock().await.unwrap());
        }
    }
}
