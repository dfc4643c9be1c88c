//! Locks that count once they are on disk.

use std::time::Duration;

use tokio::time::Instant;
use tower_distributed::{Mutex, Store, StoreBuilder};

use support::patient;

use support::eventually;
use support::program::with_waitaof;
use support::redis_server::RedisServer;
use support::requires;

const SOON: Duration = Duration::from_secs(20);

fn builder() -> StoreBuilder {
    Store::builder().timeout(SOON).fsync(Duration::from_secs(5))
}

async fn with_aof() -> RedisServer {
    RedisServer::launch(|| "appendonly yes\nappendfsync everysec".to_owned(), &[]).await
}

fn mutex(store: &Store) -> Mutex {
    Mutex::new(store, "x").unwrap()
}

#[tokio::test]
async fn a_lock_counts_once_it_is_on_disk() {
    requires!(with_waitaof());
    let server = with_aof().await;
    let [near, far] = [
        mutex(&builder().redis(&server.url()).unwrap()),
        mutex(&builder().redis(&server.url()).unwrap()),
    ];
    let guard = near.lock("k").await.unwrap();
    let waiter = tokio::spawn(async move { far.lock("k").await.unwrap() });
    eventually("it to wait", SOON, async || {
        server.query(&["ZCARD", "td:{x:k}:waiters"]) == Ok(1)
    })
    .await;
    assert!(guard.unlock().await.unwrap());
    let guard = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
    // The grant lasts until the heartbeat that finds it, and the renewal after that, are on disk: on Redis up to a second each.
    eventually("its renewal", SOON, async || {
        assert!(guard.is_held(), "it lasts until it is renewed");
        guard.until() > Instant::now() + SOON
    })
    .await;
    assert!(
        server
            .cli(&["INFO", "commandstats"])
            .contains("cmdstat_waitaof:")
    );

    // What was granted is there after a crash of the server.
    server.restart().await;
    assert!(near.try_lock("k").await.unwrap_err().is_refused());
    assert!(guard.is_held() && guard.unlock().await.unwrap());
}

#[tokio::test]
async fn a_lock_that_is_not_on_disk_is_refused() {
    requires!(with_waitaof());
    let server = RedisServer::start().await;
    let error = mutex(&builder().redis(&server.url()).unwrap())
        .lock("k")
        .await
        .unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("appendonly is disabled"),
        "{error}"
    );
    // And released.
    let other = mutex(&patient!(server.url()));
    eventually("it to be released", SOON, async || {
        other.try_lock("k").await.is_ok()
    })
    .await;

    // The disk is slower than the time that it has.
    server.cli(&["CONFIG", "SET", "appendonly", "yes"]);
    server.cli(&["CONFIG", "SET", "appendfsync", "no"]);
    let hasty = Store::builder()
        .fsync(Duration::from_millis(50))
        .redis(&server.url())
        .unwrap();
    let error = mutex(&hasty).lock("k").await.unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("to its disk within 50ms"),
        "{error}"
    );
}

/// A server that is too old says so.
#[tokio::test]
async fn a_server_without_waitaof_is_named() {
    if with_waitaof() {
        return;
    }
    let server = RedisServer::start().await;
    let error = mutex(&builder().redis(&server.url()).unwrap())
        .lock("k")
        .await
        .unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("needs Redis 7.2"),
        "{error}"
    );
}
