//! The server dies, forgets its scripts, or closes connections, under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tower_distributed::{Quota, Store, TokenBucket};

use support::eventually;
use support::redis_server::RedisServer;

/// Callers that go on and on, on a few keys.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(bucket: &TokenBucket) -> Self {
        let (stop, answered, failed) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let callers = (0..32)
            .map(|caller| {
                let (bucket, stop) = (bucket.clone(), stop.clone());
                let (answered, failed) = (answered.clone(), failed.clone());
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        match bucket.allow((caller % 4).to_string()).await {
                            Ok(decision) => {
                                assert!(decision.is_admitted(), "an outage was told as a refusal");
                                answered.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => {
                                assert!(error.is_unavailable(), "{error}");
                                failed.fetch_add(1, Ordering::Relaxed);
                                // The breaker answers at once; do not spin.
                                tokio::time::sleep(Duration::from_millis(1)).await;
                            }
                        }
                    }
                })
            })
            .collect();
        Self { stop, answered, failed, callers }
    }

    async fn more(&self, what: &str, counter: &AtomicU64) {
        let before = counter.load(Ordering::Relaxed);
        eventually(what, Duration::from_secs(20), async || counter.load(Ordering::Relaxed) > before + 100)
            .await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
    }
}

/// So large that only an outage keeps anybody from being admitted.
fn bucket(url: &str) -> TokenBucket {
    TokenBucket::new(&Store::redis(url).unwrap(), "load", Quota::per_second(4_000_000_000)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_an_outage_and_its_return_ends_it() {
    let server = RedisServer::start().await;
    let load = Load::start(&bucket(&server.url()));
    for _ in 0..3 {
        load.more("answers", &load.answered).await;
        server.kill9();
        load.more("outages", &load.failed).await;
        server.restart().await;
    }
    load.more("answers after the last restart", &load.answered).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_are_never_noticed() {
    let server = RedisServer::start().await;
    let load = Load::start(&bucket(&server.url()));
    let mut every_50_ms = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..40 {
        every_50_ms.tick().await;
        server.cli(&["SCRIPT", "FLUSH"]);
    }
    load.more("answers", &load.answered).await;
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    load.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_are_replaced() {
    let server = RedisServer::start().await;
    let load = Load::start(&bucket(&server.url()));
    for _ in 0..10 {
        load.more("answers", &load.answered).await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    load.more("answers after the last", &load.answered).await;
    load.end().await;
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_not_noticed() {
    let server = RedisServer::start().await;
    let bucket = bucket(&server.url());
    bucket.allow("k").await.unwrap();
    eventually("the connection to be idle", Duration::from_secs(20), async || {
        server.cli(&["CLIENT", "LIST"]).lines().any(|client| client.contains(" idle=2 "))
    })
    .await;
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert!(bucket.allow("k").await.unwrap().is_admitted());
}

#[tokio::test]
async fn a_server_that_was_never_there_is_an_outage_at_once() {
    let bucket = bucket("redis://127.0.0.1:1");
    for _ in 0..5 {
        let error = bucket.allow("k").await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_timeout(), "{error}");
    }
}
