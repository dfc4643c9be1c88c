//! The store fails, or sends no messages.

use std::time::Instant;

use deadpool_redis::redis::cmd;
use futures::future::{FutureExt as _, LocalBoxFuture};
use tokio::task::JoinHandle;
use tower_distributed::mutex::MutexGuard;
use tower_distributed::token_bucket::Hold;
use tower_distributed::{BreakerState, FleetQuotas, Mutex, Quota, Store, TokenBucket};

use super::{Idle, SOON, process, wait};
use support::client::Client;
use support::eventually;
use support::redis_server::RedisServer;

/// Of all processes: an attempt in about half a second of each.
const OPEN: (u64, f64) = (10, 3.0);
/// The same, and a password for each connection.
const OPEN_DEAF: (u64, f64) = (10, 6.0);
/// New connections, of which each attempt needs one.
const RETRIES: f64 = 3.0;
/// Attempts of which most are not sent: 20 a second of what waits, and the renewals.
const TRIES: f64 = 30.0;
/// A waiter asks 20 times a second, a setting is read once.
const POLLS: (u64, f64) = (50, 23.0);

pub(super) fn states() -> Vec<LocalBoxFuture<'static, Idle>> {
    vec![
        breaker_is_open("an open breaker", OPEN, process).boxed_local(),
        breaker_is_open("an open breaker without messages", OPEN_DEAF, deaf).boxed_local(),
        no_subscription("a subscription that was lost", (5, 2.0), process).boxed_local(),
        no_subscription("a subscription that is denied", POLLS, deaf).boxed_local(),
    ]
}

/// One of each that calls the store by itself, in one process.
struct Each {
    store: Store,
    held: MutexGuard,
    waiter: JoinHandle<bool>,
    hold: Hold,
    quotas: FleetQuotas,
    /// What the waiter waits for.
    guard: MutexGuard,
    other: Store,
}

impl Each {
    async fn start(server: &RedisServer, store: Store) -> Self {
        let other = process(server);
        let guard = Mutex::new(&other, "m").unwrap().lock("k").await.unwrap();
        let mutex = Mutex::new(&store, "m").unwrap();
        let held = mutex.lock("mine").await.unwrap();
        let waiter =
            tokio::spawn(async move { mutex.lock("k").await.unwrap().unlock().await.unwrap() });
        wait(server, 1).await;
        let bucket = TokenBucket::new(&store, "b", Quota::per_hour(1000)).unwrap();
        let hold = bucket.authorize("k", 10).await.unwrap();
        let quotas = FleetQuotas::new(&store, "q", "1/s").unwrap();
        quotas.refresh().await.unwrap();
        Self {
            store,
            held,
            waiter,
            hold,
            quotas,
            guard,
            other,
        }
    }

    async fn end(self) {
        assert!(self.held.is_held() && self.held.unlock().await.unwrap());
        assert!(self.guard.unlock().await.unwrap() && self.waiter.await.unwrap());
        assert!(!self.hold.capture(5).await.unwrap().ended);
        follows(&self.quotas, &self.other).await;
    }
}

async fn follows(quotas: &FleetQuotas, other: &Store) {
    FleetQuotas::new(other, "q", "1/s")
        .unwrap()
        .set("7/s", "ann")
        .await
        .unwrap();
    eventually("the setting", SOON, async || quotas.version() == 1).await;
}

/// Each, while all calls fail.
struct Failing {
    each: Each,
    /// When the breaker was open, and how many operations there were by then.
    since: (Instant, u64),
    client: Client,
}

impl Failing {
    async fn start(server: &RedisServer, store: Store) -> Self {
        let each = Each::start(server, store).await;
        server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        let bucket = TokenBucket::new(&each.store, "probe", Quota::per_hour(1000)).unwrap();
        eventually("the breaker", SOON, async || {
            bucket.allow("k").await.is_err() && each.store.stats().breaker != BreakerState::Closed
        })
        .await;
        let since = (Instant::now(), each.store.stats().operations);
        Self {
            each,
            since,
            client: server.client().unwrap(),
        }
    }

    /// The leases have ended meanwhile.
    async fn end(mut self) {
        let (began, before) = self.since;
        let a_second =
            (self.each.store.stats().operations - before) as f64 / began.elapsed().as_secs_f64();
        assert!(
            (1.0..=TRIES).contains(&a_second),
            "{a_second} operations a second while the breaker was open"
        );
        let mut heals = cmd("CONFIG");
        heals.arg("SET").arg("min-replicas-to-write").arg(0);
        self.client.query::<()>(&heals).unwrap();
        drop(self.each.guard);
        self.each.waiter.await.unwrap();
        follows(&self.each.quotas, &self.each.other).await;
    }
}

type Opens = fn(&RedisServer) -> Store;

async fn breaker_is_open(name: &'static str, bounds: (u64, f64), opens: Opens) -> Idle {
    let server = RedisServer::start().await;
    let failing = Failing::start(&server, opens(&server)).await;
    Idle {
        connections: RETRIES,
        ..Idle::new(name, bounds, server, failing.end())
    }
}

/// The store of a user who may not subscribe.
fn deaf(server: &RedisServer) -> Store {
    server.cli(&[
        "ACL",
        "SETUSER",
        "deaf",
        "on",
        "nopass",
        "~*",
        "&*",
        "+@all",
        "-subscribe",
    ]);
    Store::redis(&server.url().replace("redis://", "redis://deaf:x@")).unwrap()
}

/// Where there is one, it is lost.
async fn no_subscription(name: &'static str, bounds: (u64, f64), opens: Opens) -> Idle {
    let server = RedisServer::start().await;
    let each = Each::start(&server, opens(&server)).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    Idle::new(name, bounds, server, each.end())
}
