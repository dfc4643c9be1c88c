//! A connection that was idle breaks: after the server has run a call and before its reply arrives, or earlier.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{BloomFilter, Error, Quota, Store, TokenBucket};

use support::eventually;
use support::program::call_command;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);

/// How many processes there are, each with a connection.
const PROCESSES: usize = 10;

/// A server, and the proxy through which each of several processes reaches it.
struct Scene {
    server: RedisServer,
    proxy: FaultProxy,
    stores: Vec<Store>,
}

impl Scene {
    async fn set() -> Self {
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let store = |_| {
            Store::builder()
                .timeout(Duration::from_secs(10))
                .redis(&proxy.url())
                .unwrap()
        };
        let stores = (0..PROCESSES).map(store).collect();
        Self {
            server,
            proxy,
            stores,
        }
    }

    /// Waits until no connection was used for 2 s.
    async fn idle(&self) {
        eventually("the connections to be idle", SOON, async || {
            self.server.has_idle_callers()
        })
        .await;
    }

    /// Calls from each process, over connections that are idle and break once the server has run the call.
    async fn broken<T>(&self, command: &[u8], call: impl AsyncFn(usize) -> T) -> Vec<T> {
        self.idle().await;
        let before = self.proxy.replies_dropped();
        (0..PROCESSES).for_each(|_| self.proxy.drop_next_reply_after(command));
        let outcomes = join_all((0..PROCESSES).map(|at| call(at))).await;
        assert_eq!(self.proxy.replies_dropped() - before, PROCESSES as u64);
        outcomes
    }
}

fn is_unknown<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(error) if error.is_unavailable() && !error.is_refused())
}

#[tokio::test]
async fn a_new_item_is_not_told_as_seen() {
    let scene = Scene::set().await;
    let filter = |store| BloomFilter::new(store, "items", 1000, 1e-9).unwrap();
    let filters: Vec<_> = scene.stores.iter().map(filter).collect();
    for filter in &filters {
        filter.insert("warm").await.unwrap();
    }
    let outcomes = scene
        .broken(call_command(), async |at| {
            filters[at].insert(format!("item {at}")).await
        })
        .await;
    assert!(outcomes.iter().all(is_unknown), "{outcomes:?}");
}

#[tokio::test]
async fn a_request_is_not_charged_twice() {
    let scene = Scene::set().await;
    let bucket = |store| TokenBucket::new(store, "requests", Quota::per_hour(10)).unwrap();
    let buckets: Vec<_> = scene.stores.iter().map(bucket).collect();
    for (at, bucket) in buckets.iter().enumerate() {
        bucket.allow(format!("warm {at}")).await.unwrap();
    }
    let outcomes = scene
        .broken(call_command(), async |at| {
            buckets[at].allow(at.to_string()).await
        })
        .await;
    assert!(outcomes.iter().all(is_unknown), "{outcomes:?}");
    for (at, bucket) in buckets.iter().enumerate() {
        assert_eq!(
            bucket.peek(at.to_string()).await.unwrap().remaining(),
            9,
            "it is charged once"
        );
    }
}

/// Servers and load balancers close connections that are idle.
#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_not_noticed() {
    let scene = Scene::set().await;
    let bucket = TokenBucket::new(&scene.stores[0], "requests", Quota::per_hour(10)).unwrap();
    let filter = BloomFilter::new(&scene.stores[1], "items", 1000, 1e-9).unwrap();
    for number in 0..3_u32 {
        if number > 0 {
            scene.idle().await;
            scene
                .server
                .cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
        assert_eq!(bucket.allow("k").await.unwrap().remaining(), 9 - number);
        assert!(filter.insert(number.to_string()).await.unwrap());
    }
}
