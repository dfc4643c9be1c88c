//! Locks that hold a value of the user's: the value is for others to read, and does not make two holders one.

use std::time::Duration;

use tokio::time::timeout;
use tower_distributed::mutex::MutexBuilder;
use tower_distributed::{Mutex, Store};

use crate::leases::kinds::{Family, LONG, SOON, hasty, open, with_proxy};
use support::eventually;
use support::redis_server::RedisServer;

fn named(value: &'static str) -> MutexBuilder {
    Mutex::builder().ttl(LONG).value_with(move || value.into())
}

/// A release without an answer is sent again; the first copy of it comes when the value is locked anew.
#[tokio::test]
async fn a_late_release_leaves_the_next_lock_of_the_value_alone() {
    let (server, proxy) = with_proxy().await;
    let mutex = named("worker-1")
        .build(&hasty(&proxy.url(), 300), "m")
        .unwrap();
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
    assert!(
        others.try_lock("k").await.unwrap_err().is_refused(),
        "two hold it"
    );
    assert!(next.is_held() && next.unlock().await.unwrap());
}

/// Two processes, of which each believes that the value is its own.
#[tokio::test]
async fn a_value_of_two_processes_is_granted_once() {
    let server = RedisServer::start().await;
    let [one, other] =
        [(); 2].map(|()| named("worker-1").build(&open(&server.url()), "m").unwrap());
    let first = one.lock("k").await.unwrap();
    assert!(
        other.try_lock("k").await.unwrap_err().is_refused(),
        "two hold it"
    );
    let waiting = other.clone();
    let waiter = tokio::spawn(async move { waiting.lock("k").await.unwrap() });
    Family::Mutex(other.clone()).wait_for(&server, "k", 1).await;
    first.extend().await.unwrap();
    let fence = first.fence();
    assert!(first.unlock().await.unwrap());
    let second = timeout(SOON, waiter).await.unwrap().unwrap();
    assert!(second.fence() > fence, "{} after {fence}", second.fence());
    assert!(other.is_locked("k").await.unwrap() && second.unlock().await.unwrap());
}

/// Every call ends within its own bound, also where the last release of the value has no answer.
#[tokio::test]
async fn a_value_is_not_waited_for_without_bound() {
    let server = RedisServer::start().await;
    let mutex = named("worker-1").max_wait(Duration::from_millis(300));
    let mutex = mutex.build(&hasty(&server.url(), 300), "m").unwrap();
    let guard = mutex.lock("k").await.unwrap();
    server.pause();
    drop(guard);
    assert!(
        timeout(SOON, mutex.try_lock("k"))
            .await
            .expect("try_lock waits")
            .is_err()
    );
    assert!(
        timeout(SOON, mutex.lock("k"))
            .await
            .expect("lock waits for too long")
            .is_err()
    );
    mutex.close();
    assert!(
        timeout(SOON, mutex.lock("k"))
            .await
            .expect("a closed mutex waits")
            .is_err()
    );
    server.resume();
}

/// Tokens carry a time to live that their locks are cut to. Values do not.
#[tokio::test]
async fn a_value_that_looks_like_a_token_is_none() {
    let server = RedisServer::start().await;
    for store in [open(&server.url()), Store::in_memory()] {
        for value in ["billing-service--1.5", "0123456789abcdef-1.5"] {
            let guard = named(value)
                .build(&store, "m")
                .unwrap()
                .lock("k")
                .await
                .unwrap();
            let refused = Mutex::new(&store, "m")
                .unwrap()
                .try_lock("k")
                .await
                .unwrap_err();
            assert!(
                refused.is_refused() && refused.retry_after() > Some(LONG / 2),
                "{refused}"
            );
            assert!(guard.is_held() && guard.unlock().await.unwrap());
        }
    }
}
