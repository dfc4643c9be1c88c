//! Who waits, and who holds.

use std::time::Duration;

use futures::future::{FutureExt as _, LocalBoxFuture, join_all};
use tokio::task::JoinHandle;
use tower_distributed::dedupe::{Claimed, Dedupe};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{Error, Mutex, RwLock, SingleFlight, Store, WaitGroup};

use super::{Idle, SOON, process, wait};
use crate::scene::{LONG, open};
use support::eventually;
use support::pools::pool;
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

/// One process holds a key, which so many callers of another process wait for. They come one after the other, so that each could
/// have a rhythm of its own.
macro_rules! waits {
    ($name:literal, $bound:expr, $callers:literal, $store:expr, $build:expr, $hold:ident, $take:ident, $end:ident) => {
        async {
            let server = RedisServer::start().await;
            let [holds, waits] =
                [$store(&server), $store(&server)].map(|store| $build(&store).unwrap());
            let held = got(|| holds.$hold("k")).await;
            let mut waiters = Vec::new();
            for _ in 0..$callers {
                let waits = waits.clone();
                let waiter = async move { was_held(got(|| waits.$take("k")).await.$end().await) };
                waiters.push(tokio::spawn(waiter));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            wait(&server, $callers).await;
            Idle::new($name, $bound, server, async move {
                assert!(was_held(held.$end().await));
                all_served(waiters).await;
            })
        }
        .boxed_local()
    };
}

fn strict(store: &Store) -> Result<Mutex, Error> {
    Mutex::builder().strict_fifo().build(store, "m")
}

fn polling(server: &RedisServer) -> Store {
    pool(server.url()).into()
}

pub(super) fn states() -> Vec<LocalBoxFuture<'static, Idle>> {
    let states = vec![
        waits!(
            "a waiter for a lock",
            ONE_WAITS,
            1,
            process,
            |s| Mutex::new(s, "m"),
            lock,
            lock,
            unlock
        ),
        waits!(
            "a waiter for a permit",
            ONE_WAITS,
            1,
            process,
            |s| WaitGroup::new(s, "g", 1),
            add,
            add,
            done
        ),
        waits!(
            "a waiting reader",
            ONE_WAITS,
            1,
            process,
            |s| RwLock::new(s, "rw"),
            write,
            read,
            release
        ),
        waits!(
            "a waiting writer",
            ONE_WAITS,
            1,
            process,
            |s| RwLock::new(s, "rw"),
            read,
            write,
            release
        ),
        waits!(
            "100 waiters",
            MANY_WAIT,
            100,
            process,
            |s| WaitGroup::new(s, "g", 1),
            add,
            add,
            done
        ),
        waits!(
            "100 waiters for a strict lock",
            MANY_WAIT,
            100,
            process,
            strict,
            lock,
            lock,
            unlock
        ),
        waits!(
            "100 waiters of a pool",
            POLLS,
            100,
            polling,
            |s| WaitGroup::new(s, "g", 1),
            add,
            add,
            done
        ),
        claim_waits().boxed_local(),
        flight_waits().boxed_local(),
        locks_wait().boxed_local(),
        locks_are_held("a held lock", HELD, 1).boxed_local(),
        locks_are_held("1000 held locks", MANY_HELD, 1000).boxed_local(),
        was_subscribed().boxed_local(),
    ];
    #[cfg(feature = "cluster")]
    let states = {
        let waits = support::program::since_7_0().then(|| cluster::waits().boxed_local());
        states.into_iter().chain(waits).collect()
    };
    states
}

async fn claim_waits() -> Idle {
    let server = RedisServer::start().await;
    let [dedupe, other] = [process(&server), process(&server)].map(|store| {
        Dedupe::exact(&store, "d")
            .remember_for(LONG)
            .build()
            .unwrap()
    });
    let Claimed::New(claim) = dedupe.try_claim("item").await.unwrap() else {
        panic!("it is new")
    };
    let waiter = tokio::spawn(async move { other.claim("item", LONG).await.unwrap() });
    wait(&server, 1).await;
    Idle::new("a waiter for a claim", ONE_WAITS, server, async move {
        assert!(claim.confirm().await.unwrap());
        assert!(matches!(waiter.await.unwrap(), Claimed::Duplicate));
    })
}

async fn flight_waits() -> Idle {
    let server = RedisServer::start().await;
    // A follower whose call is not answered in time runs itself.
    let [flight, other] = [open(&server.url()), open(&server.url())].map(|store| {
        SingleFlight::<u64>::builder(Postcard)
            .max_wait(LONG)
            .build(&store, "f")
            .unwrap()
    });
    let (lands, landed) = tokio::sync::oneshot::channel::<u64>();
    let leader = tokio::spawn(async move {
        flight
            .run("k", || async { landed.await.unwrap() })
            .await
            .unwrap()
    });
    eventually("the lead", SOON, async || {
        server
            .query::<usize>(&["EXISTS", "td:{f:k}:flight:lock"])
            .unwrap()
            == 1
    })
    .await;
    let waiter = tokio::spawn(async move { other.run("k", || async { 0 }).await.unwrap() });
    wait(&server, 1).await;
    Idle::new("a follower of a flight", ONE_FOLLOWS, server, async move {
        lands.send(7).unwrap();
        assert_eq!((leader.await.unwrap(), waiter.await.unwrap()), (7, 7));
    })
}

/// What is acquired in the end: on a busy machine, an answer may come too late.
async fn got<T, F: Future<Output = Result<T, Error>>>(acquire: impl Fn() -> F) -> T {
    loop {
        match acquire().await {
            Err(error) if error.is_unavailable() => {}
            acquired => return acquired.unwrap(),
        }
    }
}

/// Whether a lease was held when it was released, if the answer came in time.
fn was_held(released: Result<bool, Error>) -> bool {
    match released {
        Err(error) if error.is_unavailable() => true,
        released => released.unwrap(),
    }
}

async fn all_served(waiters: Vec<JoinHandle<bool>>) {
    assert!(join_all(waiters).await.into_iter().all(Result::unwrap));
}

async fn locks_wait() -> Idle {
    let server = RedisServer::start().await;
    let mutexes =
        [process(&server), process(&server)].map(|store| Mutex::new(&store, "m").unwrap());
    let [mutex, other] = mutexes;
    let mutex = &mutex;
    let guards = (0..100).map(|key| got(move || mutex.lock(key.to_string())));
    let guards = join_all(guards).await;
    let mut waiters = Vec::new();
    for key in 0..100 {
        let other = other.clone();
        waiters.push(tokio::spawn(async move {
            let guard = got(|| other.lock(key.to_string())).await;
            was_held(guard.unlock().await)
        }));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    wait(&server, 100).await;
    Idle::new("waiters for 100 locks", MANY_KEYS, server, async move {
        for guard in guards {
            assert!(was_held(guard.unlock().await));
        }
        all_served(waiters).await;
    })
}

async fn locks_are_held(name: &'static str, bounds: (u64, f64), count: u64) -> Idle {
    let server = RedisServer::start().await;
    let mutex = Mutex::new(&process(&server), "m").unwrap();
    let mutex = &mutex;
    let guards = join_all((0..count).map(|key| got(move || mutex.lock(key)))).await;
    Idle::new(name, bounds, server, async move {
        let unlocked = guards
            .into_iter()
            .map(|guard| async { guard.is_held() && was_held(guard.unlock().await) });
        assert!(join_all(unlocked).await.into_iter().all(|held| held));
    })
}

/// All leases have ended: only the subscription is left.
async fn was_subscribed() -> Idle {
    let server = RedisServer::start().await;
    let [mutex, other] =
        [process(&server), process(&server)].map(|store| Mutex::new(&store, "m").unwrap());
    let guard = mutex.lock("k").await.unwrap();
    let waiting = other.clone();
    let waiter =
        tokio::spawn(async move { waiting.lock("k").await.unwrap().unlock().await.unwrap() });
    wait(&server, 1).await;
    assert!(guard.unlock().await.unwrap() && waiter.await.unwrap());
    Idle::new("a subscription", (1, 0.2), server, async move {
        assert!(mutex.lock("k").await.unwrap().unlock().await.unwrap());
        assert!(other.lock("k").await.unwrap().unlock().await.unwrap());
    })
}

/// Each of two processes is subscribed at each of three masters, and looks for the masters every 10 s.
#[cfg(feature = "cluster")]
mod cluster {
    use super::super::{Servers, one_waits};
    use super::*;
    use support::cluster::RedisCluster;

    pub(super) async fn waits() -> Idle {
        let cluster = RedisCluster::start().await;
        let stores = [(); 2].map(|()| Store::builder().cluster(cluster.urls()).unwrap());
        one_waits(
            "a waiter on a Cluster",
            (5, 3.0),
            stores,
            cluster,
            |cluster| cluster.node_of("{g:k}"),
        )
        .await
    }

    impl Servers for RedisCluster {
        fn each(&self) -> Vec<&RedisServer> {
            self.nodes().iter().collect()
        }
    }
}
