//! Waiters that are woken by a message.

use std::time::Duration;

use tower_distributed::{Mutex, Store};

use support::eventually;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);

/// Checks that a waiter of a store is woken when another store releases the lock of a key of the namespace `x`.
/// `server` has the key.
pub(crate) async fn a_waiter_is_woken(
    store: &Store,
    elsewhere: &Store,
    key: u64,
    server: &RedisServer,
) {
    let guard = Mutex::new(elsewhere, "x").unwrap().lock(key).await.unwrap();
    let mutex = Mutex::new(store, "x").unwrap();
    let waiter = tokio::spawn(async move { mutex.lock(key).await.map(drop) });
    eventually("the subscription", SOON, async || {
        server.cli(&["PUBSUB", "CHANNELS"]).contains("wake")
    })
    .await;
    assert!(guard.unlock().await.unwrap());
    waiter.await.unwrap().unwrap();
}
