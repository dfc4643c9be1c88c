//! All of which one at a time can hold a key, in one shape, and what of it is on a server.

use std::ops::Deref;
use std::time::Duration;

use tower_distributed::rw_lock::{RwLockReadGuard, RwLockWriteGuard};
use tower_distributed::{Error, Key, Lease, Mutex, MutexGuard, Permit, RwLock, Store, WaitGroup};

use support::eventually;
use support::patient;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// For what is bound to happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Long enough to be over by release only.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A primitive of which one at a time holds a key.
#[derive(Clone, Debug)]
pub(crate) enum Family {
    Permits(WaitGroup),
    Mutex(Mutex),
    Writers(RwLock),
}

/// What is held of a family.
#[derive(Debug)]
pub(crate) enum Taken {
    Permit(Permit),
    Mutex(MutexGuard),
    Writer(RwLockWriteGuard),
    Reader(RwLockReadGuard),
}

impl Family {
    pub(crate) async fn take(&self, key: impl Into<Key>) -> Result<Taken, Error> {
        Ok(match self {
            Self::Permits(permits) => Taken::Permit(permits.add(key).await?),
            Self::Mutex(mutex) => Taken::Mutex(mutex.lock(key).await?),
            Self::Writers(lock) => Taken::Writer(lock.write(key).await?),
        })
    }

    pub(crate) async fn try_take(&self, key: impl Into<Key>) -> Result<Taken, Error> {
        Ok(match self {
            Self::Permits(permits) => Taken::Permit(permits.try_add(key).await?),
            Self::Mutex(mutex) => Taken::Mutex(mutex.try_lock(key).await?),
            Self::Writers(lock) => Taken::Writer(lock.try_write(key).await?),
        })
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Permits(permits) => permits.name(),
            Self::Mutex(mutex) => mutex.name(),
            Self::Writers(lock) => lock.name(),
        }
    }

    /// One of each kind.
    pub(crate) fn each(store: &Store, ttl: Duration) -> [Self; 3] {
        Self::each_watched(store, ttl, true)
    }

    pub(crate) fn each_watched(store: &Store, ttl: Duration, watchdog: bool) -> [Self; 3] {
        let permits = WaitGroup::builder(1)
            .ttl(ttl)
            .watchdog(watchdog)
            .build(store, "permits");
        let mutex = Mutex::builder()
            .ttl(ttl)
            .watchdog(watchdog)
            .build(store, "mutex");
        let writers = RwLock::builder()
            .ttl(ttl)
            .watchdog(watchdog)
            .build(store, "rw");
        [
            Self::Permits(permits.unwrap()),
            Self::Mutex(mutex.unwrap()),
            Self::Writers(writers.unwrap()),
        ]
    }

    /// The name in Redis of a part of a key's state.
    pub(crate) fn part(&self, key: &str, part: &str) -> String {
        let kind = match self {
            Self::Permits(_) => "permits:",
            Self::Mutex(_) => "",
            Self::Writers(_) => "rw:",
        };
        format!("td:{{{}:{key}}}:{kind}{part}", self.name())
    }

    /// The name in Redis of what says who holds a key.
    pub(crate) fn holders(&self, key: &str) -> String {
        self.part(
            key,
            if matches!(self, Self::Mutex(_)) {
                "lock"
            } else {
                "holders"
            },
        )
    }

    /// Waits until so many of one other process wait for a key.
    pub(crate) async fn wait_for(&self, server: &RedisServer, key: &str, waiters: u64) {
        eventually("all to wait", SOON, async || {
            self.waiting(server, key) == self.places(waiters)
        })
        .await;
    }

    /// How many wait for a key.
    pub(crate) fn waiting(&self, server: &RedisServer, key: &str) -> u64 {
        waiting(server, &self.part(key, "beats"))
    }

    /// How many places in the queue so many waiters of one process have: those for a mutex stand in one line.
    pub(crate) fn places(&self, waiters: u64) -> u64 {
        if let Self::Mutex(_) = self {
            waiters.min(1)
        } else {
            waiters
        }
    }

    /// How many were given back before they came.
    pub(crate) fn withdrawn(&self, server: &RedisServer, key: &str) -> u64 {
        server
            .query(&["ZCOUNT", &self.part(key, "beats"), WITHDRAWN, "+inf"])
            .unwrap()
    }
}

impl Taken {
    pub(crate) async fn release(self) -> Result<bool, Error> {
        match self {
            Self::Permit(permit) => permit.done().await,
            Self::Mutex(guard) => guard.unlock().await,
            Self::Writer(guard) => guard.release().await,
            Self::Reader(guard) => guard.release().await,
        }
    }
}

impl Deref for Taken {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Self::Permit(permit) => permit,
            Self::Mutex(guard) => guard,
            Self::Writer(guard) => guard,
            Self::Reader(guard) => guard,
        }
    }
}

/// Among the beats of a key stand those who wait, and above this those who have withdrawn.
const WITHDRAWN: &str = "4503599627370496";

fn waiting(server: &RedisServer, beats: &str) -> u64 {
    server
        .query(&["ZCOUNT", beats, "-inf", &format!("({WITHDRAWN}")])
        .unwrap()
}

/// What is left of the states of a key, in any family: all but fences, withdrawals and what breakers try, which go by
/// themselves.
pub(crate) fn left(server: &RedisServer, key: &str) -> Vec<String> {
    let mut keys: Vec<String> = server
        .query(&["KEYS", &format!("td:{{*:{key}}}:*")])
        .unwrap();
    let goes = |key: &String| {
        key.ends_with(":fence")
            || key.ends_with(":probe")
            || key.ends_with(":beats") && waiting(server, key) == 0
    };
    keys.retain(|key| !goes(key));
    keys.sort();
    keys
}

/// A store whose time-out is not met on a machine that is busy.
pub(crate) fn open(url: &str) -> Store {
    patient!(url)
}

/// A store that does not wait for long.
pub(crate) fn hasty(url: &str, millis: u64) -> Store {
    Store::builder()
        .timeout(Duration::from_millis(millis))
        .redis(url)
        .unwrap()
}

/// One of each kind, in two processes.
pub(crate) fn two_of_each(server: &RedisServer) -> [[Family; 3]; 2] {
    [(); 2].map(|()| Family::each(&open(&server.url()), LONG))
}

/// A server, and a way to it that can fail.
pub(crate) async fn with_proxy() -> (RedisServer, FaultProxy) {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    (server, proxy)
}

/// How many stores hear what is pushed to them.
pub(crate) fn subscribed(server: &RedisServer) -> usize {
    server
        .query::<Vec<String>>(&["PUBSUB", "CHANNELS", "td:wake:????????????????"])
        .unwrap()
        .len()
}
