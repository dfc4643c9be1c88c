//! What of all that can be held is on a server.

use std::time::Duration;

use tower_distributed::{Mutex, RwLock, Store, WaitGroup};

pub(crate) use crate::leases::taken::{Family, Taken};
use support::eventually;
use support::patient;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// For what is bound to happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Within what a lost message may be made up for: some beats, and far less than a default time to live.
pub(crate) const IN_TIME: Duration = Duration::from_secs(6);

/// Long enough to be over by release only.
pub(crate) const LONG: Duration = Duration::from_secs(60);

impl Family {
    /// One of each kind.
    pub(crate) fn each(store: &Store, ttl: Duration) -> [Self; 3] {
        Self::each_watched(store, ttl, true)
    }

    pub(crate) fn each_watched(store: &Store, ttl: Duration, watchdog: bool) -> [Self; 3] {
        let permits = WaitGroup::builder(1).ttl(ttl).watchdog(watchdog).build(store, "permits");
        let mutex = Mutex::builder().ttl(ttl).watchdog(watchdog).build(store, "mutex");
        let writers = RwLock::builder().ttl(ttl).watchdog(watchdog).build(store, "rw");
        [Self::Permits(permits.unwrap()), Self::Mutex(mutex.unwrap()), Self::Writers(writers.unwrap())]
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
        self.part(key, if matches!(self, Self::Mutex(_)) { "lock" } else { "holders" })
    }

    /// Waits until so many of one other process wait for a key.
    pub(crate) async fn wait_for(&self, server: &RedisServer, key: &str, waiters: u64) {
        eventually("all to wait", SOON, async || self.waiting(server, key) == self.places(waiters)).await;
    }

    /// How many wait for a key.
    pub(crate) fn waiting(&self, server: &RedisServer, key: &str) -> u64 {
        waiting(server, &self.part(key, "beats"))
    }

    /// How many places in the queue so many waiters of one process have: those for a mutex stand in one line.
    pub(crate) fn places(&self, waiters: u64) -> u64 {
        if let Self::Mutex(_) = self { waiters.min(1) } else { waiters }
    }

    /// How many were given back before they came.
    pub(crate) fn withdrawn(&self, server: &RedisServer, key: &str) -> u64 {
        server.query(&["ZCOUNT", &self.part(key, "beats"), WITHDRAWN, "+inf"]).unwrap()
    }
}

/// Among the beats of a key stand those who wait, and above this those who have withdrawn.
const WITHDRAWN: &str = "4503599627370496";

fn waiting(server: &RedisServer, beats: &str) -> u64 {
    server.query(&["ZCOUNT", beats, "-inf", &format!("({WITHDRAWN}")]).unwrap()
}

/// What is left of the states of a key, in any family: all but fences, withdrawals and what breakers try, which go by
/// themselves.
pub(crate) fn left(server: &RedisServer, key: &str) -> Vec<String> {
    let mut keys: Vec<String> = server.query(&["KEYS", &format!("td:{{*:{key}}}:*")]).unwrap();
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
    Store::builder().timeout(Duration::from_millis(millis)).redis(url).unwrap()
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
    server.query::<Vec<String>>(&["PUBSUB", "CHANNELS", "td:wake:????????????????"]).unwrap().len()
}
