//! Many leases that are dropped at once.

use std::thread;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tower_distributed::{Permit, WaitGroup};

use crate::kinds::{LONG, open};
use crate::support::eventually;
use crate::support::redis_server::RedisServer;

const MANY: u32 = 30_000;
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
    let mut before = u32::MAX;
    eventually("the last release", SOON, async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        std::mem::replace(&mut before, releases(server)) == releases(server)
    })
    .await;
}

/// How many releases the server got: each removes a token from the holders.
fn releases(server: &RedisServer) -> u32 {
    let stats: String = server.query(&["INFO", "commandstats"]).unwrap();
    let count = |line: &str| line.strip_prefix("cmdstat_zrem:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(count).unwrap_or(0)
}
