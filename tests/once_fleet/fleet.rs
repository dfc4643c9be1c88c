//! A fleet: a Redis for the library, another for the referee, and the processes.

use std::time::Duration;

use tower_distributed::Store;

use crate::referee::Referee;
use support::eventually;
use support::keys::keys_without_ttl;
use support::processes::{Child, setting};
use support::redis_server::RedisServer;

/// For what takes as long as it takes on a slow machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Among the beats of a key stand those who wait, and from this on those who have withdrawn.
const WITHDRAWN: &str = "4503599627370496";

pub(crate) struct Fleet {
    server: RedisServer,
    refereeing: RedisServer,
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

    pub(crate) fn spawn(&self, role: &str, name: &str, env: &[(&str, &str)]) -> Child {
        let (url, referee) = (self.server.url(), self.refereeing.url());
        let own = [("URL", url.as_str()), ("REFEREE", referee.as_str()), ("NAME", name)];
        Child::spawn(role, &[&own[..], env].concat())
    }

    /// Waits until so many wait for a key, in this part of its state.
    pub(crate) async fn lined_up(&self, state: &str, part: &str, count: u64) {
        let (beats, below) = (format!("td:{{{state}}}:{part}"), format!("({WITHDRAWN}"));
        eventually(&format!("{count} to wait for {state}"), LONG, async || {
            self.server.query(&["ZCOUNT", &beats, "-inf", &below]) == Ok(count)
        })
        .await;
    }

    /// Who waits for a key, first come first.
    pub(crate) fn queue(&self, state: &str, part: &str) -> Vec<String> {
        self.server.query(&["ZRANGE", &format!("td:{{{state}}}:{part}"), "0", "-1"]).unwrap()
    }

    /// Nothing is left for ever.
    pub(crate) fn leaves_nothing(&self) {
        assert_eq!(keys_without_ttl(&self.server), [""; 0]);
    }
}

/// What is to come to an end, also where the library is broken.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(LONG, future).await;
    outcome.unwrap_or_else(|_| panic!("waited {LONG:?} in vain for {what}"))
}

/// The store of a process. Nobody is to be told of an outage because the machine is busy.
fn store(url: &str) -> Store {
    Store::builder().timeout(Duration::from_secs(20)).redis(url).unwrap()
}

/// In a role: the store of its fleet.
pub(crate) fn store_of_role() -> Store {
    store(&setting("URL"))
}
