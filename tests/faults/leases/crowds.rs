//! Many leases that are dropped at once.

use std::thread;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tower_distributed::{Permit, WaitGroup};

use crate::leases::kinds::{LONG, open};
use support::eventually;
use support::redis_server::RedisServer;

const MANY: u64 = 10_000;

/// From the background thread, where there is no runtime. On that of the caller, which may be late, each is sent again at most
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn each_is_released_once() {
    const SOON: Duration = Duration::from_secs(60);
    for (has_runtime, most) in [(false, MANY), (true, 2 * MANY)] {
        let server = RedisServer::start().await;
        let group = WaitGroup::builder(1)
            .ttl(LONG)
            .build(&open(&server.url()), "crowd")
            .unwrap();
        let add = async |key| group.add(key).await.unwrap();
        let permits: Vec<Permit> = stream::iter(0..MANY)
            .map(add)
            .buffer_unordered(512)
            .collect()
            .await;
        match has_runtime {
            true => drop(permits),
            false => thread::spawn(move || drop(permits)).join().unwrap(),
        }
        let keys = || server.query::<u64>(&["DBSIZE"]).unwrap();
        eventually("all releases", SOON, async || keys() == 0).await;
        // Each removes a token from the holders. Those that are sent again come after the others.
        let mut before = u64::MAX;
        eventually("the last release", SOON, async || {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let releases = server.calls_of("zrem");
            std::mem::replace(&mut before, releases) == releases
        })
        .await;
        assert!(
            (MANY..=most).contains(&before),
            "{before} releases of {MANY} leases"
        );
    }
}

/// A release is sent before the next call of its caller, however many there are.
#[tokio::test]
async fn what_is_dropped_is_free_for_the_next_call() {
    const LIMIT: u32 = 300;
    let server = RedisServer::start().await;
    let group = WaitGroup::builder(LIMIT)
        .ttl(LONG)
        .build(&open(&server.url()), "crowd")
        .unwrap();
    for _ in 0..5 {
        let add = |_| async { group.add("k").await.unwrap() };
        let permits: Vec<_> = stream::iter(0..LIMIT).map(add).buffered(64).collect().await;
        drop(permits);
        drop(group.try_add_n("k", LIMIT).await.unwrap());
    }
}
