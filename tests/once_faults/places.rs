//! Where the state lives, and what of it is left.

use std::time::Duration;

use tower_distributed::Store;

use support::eventually;
use support::keys::keys_without_ttl;
use support::redis_server::RedisServer;

/// For what is bound to happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Long enough to be over by something else only.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Among the beats of a key stand those who wait, and from this on those who have withdrawn.
const WITHDRAWN: &str = "4503599627370496";

/// A store for each of several processes.
pub(crate) struct Place {
    pub(crate) stores: Vec<Store>,
    /// `None`: all are one process.
    pub(crate) server: Option<RedisServer>,
}

impl Place {
    pub(crate) fn in_memory(processes: usize) -> Self {
        Self { stores: vec![Store::in_memory(); processes], server: None }
    }

    pub(crate) async fn redis(processes: usize) -> Self {
        let server = RedisServer::start().await;
        Self { stores: (0..processes).map(|_| open(&server.url())).collect(), server: Some(server) }
    }

    /// How many wait for a key in the store, where that can be seen.
    pub(crate) fn waiting(&self, key: &str) -> Option<usize> {
        let server = self.server.as_ref()?;
        let beats: Vec<String> = server.query(&["KEYS", &format!("td:{{*:{key}}}:*beats")]).unwrap();
        Some(beats.iter().map(|beats| waiting(server, beats)).sum())
    }

    /// Waits until so many wait, where that can be seen.
    pub(crate) async fn lined_up(&self, key: &str, count: usize) {
        eventually(&format!("{count} to wait for {key:?}"), SOON, async || {
            self.waiting(key).is_none_or(|waiting| waiting == count)
        })
        .await;
    }

    /// What is held or waited for of a key.
    pub(crate) fn left(&self, key: &str) -> Vec<String> {
        let Some(server) = &self.server else { return Vec::new() };
        let mut keys: Vec<String> = server.query(&["KEYS", &format!("td:{{*:{key}}}:*")]).unwrap();
        keys.retain(|key| {
            key.ends_with("lock")
                || key.ends_with("waiters")
                || key.ends_with("beats") && waiting(server, key) > 0
        });
        keys
    }

    /// Waits until nobody holds a key or waits for it.
    pub(crate) async fn free(&self, key: &str) {
        eventually(&format!("{key:?} to be free"), SOON, async || self.left(key).is_empty()).await;
    }

    /// Nothing is left for ever.
    pub(crate) fn leaves_nothing(&self) {
        if let Some(server) = &self.server {
            assert_eq!(keys_without_ttl(server), [""; 0]);
        }
    }
}

fn waiting(server: &RedisServer, beats: &str) -> usize {
    server.query(&["ZCOUNT", beats, "-inf", &format!("({WITHDRAWN}")]).unwrap()
}

/// A store whose time-out is not met on a machine that is busy.
pub(crate) fn open(url: &str) -> Store {
    Store::builder().timeout(Duration::from_secs(10)).redis(url).unwrap()
}

/// How many stores hear what is pushed to them.
pub(crate) fn subscribed(server: &RedisServer) -> usize {
    server.query::<Vec<String>>(&["PUBSUB", "CHANNELS", "td:wake:????????????????"]).unwrap().len()
}
