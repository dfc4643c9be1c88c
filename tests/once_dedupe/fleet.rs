//! A fleet: a Redis for the library, another for the referee, and the processes.

use std::time::Duration;

use tower_distributed::{BloomFilter, Store};

use crate::referee::Referee;
use support::processes::{Child, setting};
use support::redis_server::RedisServer;

/// For what takes as long as it takes on a slow machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Fleet {
    server: RedisServer,
    pub(crate) refereeing: RedisServer,
    pub(crate) referee: Referee,
}

impl Fleet {
    pub(crate) async fn start() -> Self {
        let (server, refereeing) = (RedisServer::start().await, RedisServer::start().await);
        let referee = Referee::at(&refereeing.url()).await;
        Self { server, refereeing, referee }
    }

    pub(crate) fn store(&self) -> Store {
        store(&self.server.url())
    }

    pub(crate) fn spawn(&self, role: &str, name: &str) -> Child {
        let (url, referee) = (self.server.url(), self.refereeing.url());
        Child::spawn(role, &[("URL", &url), ("REFEREE", &referee), ("NAME", name)])
    }
}

/// Nobody is to be told of an outage because the machine is busy.
fn store(url: &str) -> Store {
    Store::builder().timeout(Duration::from_secs(20)).redis(url).unwrap()
}

/// In a role: the store of its fleet.
pub(crate) fn store_of_role() -> Store {
    store(&setting("URL"))
}

/// The most items of a test.
pub(crate) const CAPACITY: u64 = 100_000;

/// That it takes any new one of all items for one that it knows has a probability of 100 000 · 10⁻¹¹, one in a million.
pub(crate) fn filter(store: &Store) -> BloomFilter {
    BloomFilter::new(store, "items", CAPACITY, 1e-11).unwrap()
}
