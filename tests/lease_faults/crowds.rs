//! Many leases that are dropped at once.

use std::thread;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tower_distributed::{Permit, WaitGroup};

use crate::kinds::{LONG, open};
use support::eventually;
use support::redis_server::RedisServer;

const MANY: u64 = 30_000;
const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn each_is_released_once() {
    let server = RedisServer::start().await;
    let permits = hold(&server).await;
    // Without a runtime: all are released from the background thread.
    thread::spawn(move || drop(permits)).join().unwrap();
    all_released(&server).await;
    assert_eq!(releases(&server), MANY);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_sent_again_at_most_once_if_the_runtime_of_the_caller_is_late() {
    let server = RedisServer::start().await;
    drop(hold(&server).await);
    all_released(&server).await;
    let releases = releases(&server);
    assert!((MANY..=2 * MANY).contains(&releases), "{releases} releases of {MANY} leases");
}

/// A permit of each key.
async fn hold(server: &RedisServer) -> Vec<Permit> {
    let group = WaitGroup::builder(1).ttl(LONG).build(&open(&server.url()), "crowd").unwrap();
    let add = async |key| group.add(key).await.unwrap();
    stream::iter(0..MANY).map(add).buffer_unordered(512).collect().await
}

async fn all_released(server: &RedisServer) {
    let keys = || server.query::<u64>(&["DBSIZE"]).unwrap();
    eventually("all releases", SOON, async || keys() == 0).await;
    // Those that are sent again come after the others.
    let mut before = u64::MAX;
    eventually("the last release", SOON, async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        std::mem::replace(&mut before, releases(server)) == releases(server)
    })
    .await;
}

/// How many releases the server got: each removes a token from the holders.
fn releases(server: &RedisServer) -> u64 {
    server.calls_of("zrem")
}

/// A release is sent before the next call of its caller, however many there are.
#[tokio::test]
async fn what_is_dropped_is_free_for_the_next_call() {
    const LIMIT: u32 = 300;
    let server = RedisServer::start().await;
    let group = WaitGroup::builder(LIMIT).ttl(LONG).build(&open(&server.url()), "crowd").unwrap();
    for _ in 0..5 {
        let permits: Vec<_> = stream::iter(0..LIMIT)
            .map(|_| async { group.add("k").await.unwrap() })
            .buffered(64)
            .collect()
            .await;
        drop(permits);
        drop(group.try_add_n("k", LIMIT).await.unwrap());
    }
}

/// Waiters that go away together are all withdrawn, and nobody waits for them.
#[tokio::test]
async fn a_crowd_that_goes_away_leaves_nobody() {
    let server = RedisServer::start().await;
    let group = WaitGroup::builder(1).ttl(LONG).build(&open(&server.url()), "crowd").unwrap();
    let held = group.add("k").await.unwrap();
    let impatient = group.with_max_wait(Duration::from_millis(300));
    let waiters: Vec<_> =
        stream::iter(0..1000).map(|_| impatient.add("k")).buffer_unordered(1000).collect().await;
    assert!(waiters.iter().all(|waiter| waiter.as_ref().is_err_and(|error| error.is_refused())));
    eventually("all to be withdrawn", SOON, async || group.inspect("k").await.unwrap().waiting == 0).await;
    assert!(held.done().await.unwrap());
    assert!(group.try_add("k").await.unwrap().done().await.unwrap());
}
