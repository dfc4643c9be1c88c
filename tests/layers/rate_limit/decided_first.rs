//! The inner service is called after the decision, and never for a refusal.

use std::time::Duration;

use tokio_test::{assert_pending, assert_ready_err, task};
use tower::{Layer as _, Service as _, ServiceExt as _};
use tower_distributed::{Quota, RateLimitLayer, Refusal, Store, TokenBucket};
use tower_test::{assert_request_eq, mock};

use crate::stores::{HOUR, SOON, at_most};

type Mock = mock::Mock<&'static str, &'static str>;

fn by_name(name: &&'static str) -> &'static str {
    name
}

#[tokio::test(start_paused = true)]
async fn while_a_request_waits_nothing_arrives() {
    let bucket = at_most(1, &Store::in_memory());
    bucket.allow("ann").await.unwrap();
    let (inner, mut handle): (Mock, _) = mock::pair();
    let mut service = RateLimitLayer::new(bucket, by_name).max_wait(HOUR).layer(inner);
    let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
    assert_pending!(call.poll());
    let second = Duration::from_secs(1);
    tokio::time::advance(HOUR - second).await;
    assert_pending!(call.poll());
    assert_pending!(handle.poll_request());
    tokio::time::advance(second).await;
    assert!(call.is_woken());
    assert_pending!(call.poll());
    assert_request_eq!(handle, "ann").send_response("hello");
    assert_eq!(call.await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_arrive_first_come_first_served() {
    let bucket = TokenBucket::new(&Store::in_memory(), "requests", Quota::per_second(1)).unwrap();
    let (inner, mut handle): (Mock, _) = mock::pair();
    let limit = RateLimitLayer::new(bucket, |_: &&str| "all").max_wait(HOUR);
    let mut service = limit.layer(inner);
    handle.allow(3);
    let began = tokio::time::Instant::now();
    let mut calls = Vec::new();
    for name in ["first", "second", "third"] {
        calls.push(service.ready().await.unwrap().call(name));
    }
    let calls = tokio::spawn(futures::future::join_all(calls));
    for (seconds, name) in [(0, "first"), (1, "second"), (2, "third")] {
        assert_request_eq!(handle, name).send_response("hello");
        assert_eq!(began.elapsed().as_secs(), seconds);
    }
    assert!(calls.await.unwrap().into_iter().all(|outcome| outcome.is_ok()));
}

#[tokio::test(start_paused = true)]
async fn who_would_wait_too_long_is_refused_at_once() {
    let bucket = at_most(1, &Store::in_memory());
    bucket.allow("ann").await.unwrap();
    let (inner, _handle): (Mock, _) = mock::pair();
    let mut service = RateLimitLayer::new(bucket, by_name).max_wait(HOUR - SOON).layer(inner);
    let mut call = task::spawn(service.ready().await.unwrap().call("ann"));
    assert!(assert_ready_err!(call.poll()).is::<Refusal>());
}
