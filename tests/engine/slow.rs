//! A Redis that is slow and healthy.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Key, Store};

use crate::scene::{MACHINE, wide_bucket};
use support::redis_server::RedisServer;
use support::slow_proxy::SlowProxy;

const CALLERS: usize = 100;

/// How often each caller calls: the first time while the store connects, then at about the same time as the others.
const CALLS: usize = 3;

/// Calls through a network that delivers each reply so many milliseconds late; how many were not served, and why.
async fn failures(server: &RedisServer, millis: u64, key: fn(usize) -> Key) -> Option<String> {
    let proxy = SlowProxy::start(server.port(), Duration::from_millis(millis)).await;
    let bucket = wide_bucket(&Store::redis(&proxy.url()).unwrap());
    let callers = (0..CALLERS).map(|caller| {
        let bucket = bucket.clone();
        tokio::spawn(async move {
            let mut errors = Vec::new();
            for _ in 0..CALLS {
                errors.extend(bucket.allow(key(caller)).await.err());
            }
            errors
        })
    });
    let errors: Vec<_> = join_all(callers).await.into_iter().flat_map(Result::unwrap).collect();
    let first = errors.first()?;
    Some(format!("{millis} ms: {} of {} calls failed, the first: {first}", errors.len(), CALLERS * CALLS))
}

/// Below the default time-out of 500 ms all calls are served, also those that wait for another call or a connection.
async fn all_are_served(key: fn(usize) -> Key) {
    let server = RedisServer::start().await;
    // A server without the library takes one answer more.
    wide_bucket(&Store::redis(&server.url()).unwrap()).allow("first").await.unwrap();
    let _turn = MACHINE.read().await;
    let delays = [150, 200, 240, 300].map(|millis| failures(&server, millis, key));
    let told: Vec<_> = join_all(delays).await.into_iter().flatten().collect();
    assert!(told.is_empty(), "\n{}", told.join("\n"));
}

/// Defect 5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_one_key_are_served_by_a_slow_server() {
    all_are_served(|_| "k".into()).await;
}

/// Defect 5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_many_keys_are_served_by_a_slow_server() {
    all_are_served(|caller| caller.to_string().into()).await;
}

/// A server that becomes slow while the store is connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_becomes_slow_goes_on_serving() {
    let server = RedisServer::start().await;
    let _turn = MACHINE.read().await;
    let proxy = SlowProxy::start(server.port(), Duration::ZERO).await;
    let bucket = wide_bucket(&Store::redis(&proxy.url()).unwrap());
    bucket.allow("warm").await.unwrap();
    for millis in [150, 300, 0] {
        proxy.delay_replies(Duration::from_millis(millis));
        let calls = join_all((0..CALLERS).map(|caller| bucket.allow((caller % 10).to_string()))).await;
        let errors: Vec<_> = calls.into_iter().filter_map(Result::err).collect();
        assert!(errors.is_empty(), "{millis} ms: {} of {CALLERS} failed: {}", errors.len(), errors[0]);
    }
}
