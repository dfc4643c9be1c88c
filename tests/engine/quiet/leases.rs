//! Who waits, and who holds.

use std::future::Future;
use std::time::Duration;

use futures::future::{FutureExt as _, LocalBoxFuture, join_all};
use tokio::task::JoinHandle;
use tower_distributed::dedupe::{Claimed, Dedupe};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{Mutex, RwLock, SingleFlight, Store, WaitGroup};

#[cfg(feature = "cluster")]
use super::Servers;
use super::{Idle, SOON, process, wait};
#[cfg(feature = "cluster")]
use support::cluster::RedisCluster;
use support::patient;
use support::pools::pool;
#[cfg(feature = "cluster")]
use support::program::since_7_0;
use support::redis_server::RedisServer;

/// One place in a queue: a heartbeat every 1.35 s, and the ping of the subscription every 15 s.
const ONE_WAITS: (u64, f64) = (5, 1.0);
/// Many places: their heartbeats go together.
const MANY_WAIT: (u64, f64) = (5, 2.0);
/// The leader renews its lease of 5 s as well.
const ONE_FOLLOWS: (u64, f64) = (5, 1.5);
/// Each key that is waited for has heartbeats of its own.
const MANY_KEYS: (u64, f64) = (500, 85.0);
const HELD: (u64, f64) = (1, 1.0);
const MANY_HELD: (u64, f64) = (1, 2.0);
/// Without a subscription, waiters ask 20 times a second.
const POLLS: (u64, f64) = (50, 21.0);

const LONG: Duration = Duration::from_secs(600);

pub(super) fn states() -> Vec<LocalBoxFuture<'static, Idle>> {
    let states = vec![
        mutex_waits().boxed_local(),
        permit_waits().boxed_local(),
        reader_waits().boxed_local(),
        writer_waits().boxed_local(),
        claim_waits().boxed_local(),
        flight_waits().boxed_local(),
        permits_wait().boxed_local(),
        locks_wait().boxed_local(),
        strict_locks_wait().boxed_local(),
        a_lock_is_held().boxed_local(),
        locks_are_held().boxed_local(),
        permits_are_held().boxed_local(),
        was_subscribed().boxed_local(),
        a_pool_polls().boxed_local(),
    ];
    #[cfg(feature = "cluster")]
    let states = states.into_iter().chain(since_7_0().then(|| cluster_waits().boxed_local())).collect();
    states
}

/// Waits until so many of the tasks wait.
async fn lone<T: Send + 'static>(
    server: &RedisServer,
    waits: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let waiter = tokio::spawn(waits);
    wait(server, 1).await;
    waiter
}

async fn mutex_waits() -> Idle {
    let server = RedisServer::start().await;
    let mutexes = [process(&server), process(&server)].map(|store| Mutex::new(&store, "m").unwrap());
    let [mutex, other] = mutexes;
    let guard = mutex.lock("k").await.unwrap();
    let waiter = lone(&server, async move { other.lock("k").await.unwrap().unlock().await.unwrap() }).await;
    Idle::new("a waiter for a lock", ONE_WAITS, server, async move {
        assert!(guard.unlock().await.unwrap() && waiter.await.unwrap());
    })
}

async fn permit_waits() -> Idle {
    let server = RedisServer::start().await;
    let groups = [process(&server), process(&server)].map(|store| WaitGroup::new(&store, "g", 1).unwrap());
    let [group, other] = groups;
    let permit = group.add("k").await.unwrap();
    let waiter = lone(&server, async move { other.add("k").await.unwrap().done().await.unwrap() }).await;
    Idle::new("a waiter for a permit", ONE_WAITS, server, async move {
        assert!(permit.done().await.unwrap() && waiter.await.unwrap());
    })
}

async fn reader_waits() -> Idle {
    let server = RedisServer::start().await;
    let [lock, other] = [process(&server), process(&server)].map(|store| RwLock::new(&store, "rw").unwrap());
    let writer = lock.write("k").await.unwrap();
    let waiter = lone(&server, async move { other.read("k").await.unwrap().release().await.unwrap() }).await;
    Idle::new("a waiting reader", ONE_WAITS, server, async move {
        assert!(writer.release().await.unwrap() && waiter.await.unwrap());
    })
}

async fn writer_waits() -> Idle {
    let server = RedisServer::start().await;
    let [lock, other] = [process(&server), process(&server)].map(|store| RwLock::new(&store, "rw").unwrap());
    let reader = lock.read("k").await.unwrap();
    let waiter = lone(&server, async move { other.write("k").await.unwrap().release().await.unwrap() }).await;
    Idle::new("a waiting writer", ONE_WAITS, server, async move {
        assert!(reader.release().await.unwrap() && waiter.await.unwrap());
    })
}

async fn claim_waits() -> Idle {
    let server = RedisServer::start().await;
    let [dedupe, other] = [process(&server), process(&server)]
        .map(|store| Dedupe::exact(&store, "d").remember_for(LONG).build().unwrap());
    let Claimed::New(claim) = dedupe.try_claim("item").await.unwrap() else { panic!("it is new") };
    let waiter = lone(&server, async move { other.claim("item", LONG).await.unwrap() }).await;
    Idle::new("a waiter for a claim", ONE_WAITS, server, async move {
        assert!(claim.confirm().await.unwrap());
        assert!(matches!(waiter.await.unwrap(), Claimed::Duplicate));
    })
}

async fn flight_waits() -> Idle {
    let server = RedisServer::start().await;
    // A follower whose call is not answered in time runs itself.
    let [flight, other] = [patient!(server.url()), patient!(server.url())]
        .map(|store| SingleFlight::<u64>::builder(Postcard).max_wait(LONG).build(&store, "f").unwrap());
    let (lands, landed) = tokio::sync::oneshot::channel::<u64>();
    let leader =
        tokio::spawn(async move { flight.run("k", || async { landed.await.unwrap() }).await.unwrap() });
    support::eventually("the lead", SOON, async || {
        server.query::<usize>(&["EXISTS", "td:{f:k}:flight:lock"]).unwrap() == 1
    })
    .await;
    let waiter = lone(&server, async move { other.run("k", || async { 0 }).await.unwrap() }).await;
    Idle::new("a follower of a flight", ONE_FOLLOWS, server, async move {
        lands.send(7).unwrap();
        assert_eq!((leader.await.unwrap(), waiter.await.unwrap()), (7, 7));
    })
}

/// They come one after the other, so that each could have a rhythm of its own.
async fn hundred<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    waits: impl Fn(u32) -> F,
) -> Vec<JoinHandle<T>> {
    let mut waiters = Vec::new();
    for number in 0..100 {
        waiters.push(tokio::spawn(waits(number)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    waiters
}

async fn all_served(waiters: Vec<JoinHandle<bool>>) {
    assert!(join_all(waiters).await.into_iter().all(Result::unwrap));
}

async fn permits_wait() -> Idle {
    let server = RedisServer::start().await;
    let groups = [process(&server), process(&server)].map(|store| WaitGroup::new(&store, "g", 1).unwrap());
    let [group, other] = groups;
    let permit = group.add("k").await.unwrap();
    let waiters = hundred(|_| {
        let other = other.clone();
        async move { other.add("k").await.unwrap().done().await.unwrap() }
    });
    let waiters = waiters.await;
    wait(&server, 100).await;
    Idle::new("100 waiters for a permit", MANY_WAIT, server, async move {
        assert!(permit.done().await.unwrap());
        all_served(waiters).await;
    })
}

async fn locks_wait() -> Idle {
    let server = RedisServer::start().await;
    let mutexes = [process(&server), process(&server)].map(|store| Mutex::new(&store, "m").unwrap());
    let [mutex, other] = mutexes;
    let guards = join_all((0..100).map(|key| mutex.lock(key.to_string()))).await;
    let waiters = hundred(|key| {
        let other = other.clone();
        async move { other.lock(key.to_string()).await.unwrap().unlock().await.unwrap() }
    });
    let waiters = waiters.await;
    wait(&server, 100).await;
    Idle::new("waiters for 100 locks", MANY_KEYS, server, async move {
        for guard in guards {
            assert!(guard.unwrap().unlock().await.unwrap());
        }
        all_served(waiters).await;
    })
}

async fn strict_locks_wait() -> Idle {
    let server = RedisServer::start().await;
    let mutexes = [process(&server), process(&server)]
        .map(|store| Mutex::builder().strict_fifo().build(&store, "m").unwrap());
    let [mutex, other] = mutexes;
    let guard = mutex.lock("k").await.unwrap();
    let waiters = hundred(|_| {
        let other = other.clone();
        async move { other.lock("k").await.unwrap().unlock().await.unwrap() }
    });
    let waiters = waiters.await;
    wait(&server, 100).await;
    Idle::new("100 waiters for a strict lock", MANY_WAIT, server, async move {
        assert!(guard.unlock().await.unwrap());
        all_served(waiters).await;
    })
}

async fn a_lock_is_held() -> Idle {
    let server = RedisServer::start().await;
    let guard = Mutex::new(&process(&server), "m").unwrap().lock("k").await.unwrap();
    Idle::new("a held lock", HELD, server, async move {
        assert!(guard.is_held() && guard.unlock().await.unwrap());
    })
}

async fn locks_are_held() -> Idle {
    let server = RedisServer::start().await;
    let mutex = Mutex::new(&process(&server), "m").unwrap();
    let guards = join_all((0..1000).map(|key| mutex.lock(key.to_string()))).await;
    Idle::new("1000 held locks", MANY_HELD, server, async move {
        let unlocked = guards.into_iter().map(|guard| async { guard.unwrap().unlock().await.unwrap() });
        assert!(join_all(unlocked).await.into_iter().all(|held| held));
    })
}

async fn permits_are_held() -> Idle {
    let server = RedisServer::start().await;
    let group = WaitGroup::new(&process(&server), "g", 1000).unwrap();
    let mut permits = Vec::new();
    for _ in 0..10 {
        permits.extend(join_all((0..100).map(|_| group.add("k"))).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Idle::new("1000 held permits", MANY_HELD, server, async move {
        let done = permits.into_iter().map(|permit| async { permit.unwrap().done().await.unwrap() });
        assert!(join_all(done).await.into_iter().all(|held| held));
    })
}

/// All leases have ended: only the subscription is left.
async fn was_subscribed() -> Idle {
    let server = RedisServer::start().await;
    let [mutex, other] = [process(&server), process(&server)].map(|store| Mutex::new(&store, "m").unwrap());
    let guard = mutex.lock("k").await.unwrap();
    let waiting = other.clone();
    let waiter = lone(&server, async move { waiting.lock("k").await.unwrap().unlock().await.unwrap() }).await;
    assert!(guard.unlock().await.unwrap() && waiter.await.unwrap());
    Idle::new("a subscription", (1, 0.2), server, async move {
        assert!(mutex.lock("k").await.unwrap().unlock().await.unwrap());
        assert!(other.lock("k").await.unwrap().unlock().await.unwrap());
    })
}

async fn a_pool_polls() -> Idle {
    let server = RedisServer::start().await;
    let groups =
        [pool(server.url()), pool(server.url())].map(|pool| WaitGroup::new(&pool.into(), "g", 1).unwrap());
    let [group, other] = groups;
    let permit = group.add("k").await.unwrap();
    let waiters = hundred(|_| {
        let other = other.clone();
        async move { other.add("k").await.unwrap().done().await.unwrap() }
    });
    let waiters = waiters.await;
    wait(&server, 100).await;
    Idle::new("100 waiters of a pool", POLLS, server, async move {
        assert!(permit.done().await.unwrap());
        all_served(waiters).await;
    })
}

/// Each of two processes is subscribed at each of three masters, and looks for the masters every 10 s.
#[cfg(feature = "cluster")]
async fn cluster_waits() -> Idle {
    let cluster = RedisCluster::start().await;
    let open = || Store::builder().cluster(cluster.urls()).unwrap();
    let groups = [open(), open()].map(|store| WaitGroup::new(&store, "g", 1).unwrap());
    let [group, other] = groups;
    let permit = group.add("k").await.unwrap();
    let waiter = tokio::spawn(async move { other.add("k").await.unwrap().done().await.unwrap() });
    wait(cluster.node_of("{g:k}"), 1).await;
    Idle::new("a waiter on a Cluster", (5, 3.0), cluster, async move {
        assert!(permit.done().await.unwrap() && waiter.await.unwrap());
    })
}

#[cfg(feature = "cluster")]
impl Servers for RedisCluster {
    fn each(&self) -> Vec<&RedisServer> {
        self.nodes().iter().collect()
    }
}
