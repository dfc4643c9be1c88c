//! A fleet: a Redis for the library, another for the referee, and the processes.

use std::time::Duration;

use deadpool_redis::redis;
use deadpool_redis::redis::aio::MultiplexedConnection;
use tower_distributed::Store;

use crate::judge::{Note, Verdict, judge};
use crate::referee::{Referee, connect};
use support::eventually;
use support::processes::{Child, setting};
use support::redis_server::RedisServer;

/// For what takes as long as it takes on a slow machine.
pub(crate) const LONG: Duration = Duration::from_secs(180);

pub(crate) struct Fleet {
    server: RedisServer,
    refereeing: RedisServer,
    /// To look at what the library has written.
    probe: MultiplexedConnection,
    pub(crate) referee: Referee,
}

/// One of the processes. Its visits begin with its name.
pub(crate) struct Player {
    pub(crate) name: String,
    pub(crate) child: Child,
}

impl Fleet {
    pub(crate) async fn start() -> Self {
        let (server, refereeing) = (RedisServer::start().await, RedisServer::start().await);
        let probe = connect(&server.url()).await;
        let referee = Referee::at(&refereeing.url()).await;
        Self { server, refereeing, probe, referee }
    }

    pub(crate) fn store(&self) -> Store {
        store(&self.server.url())
    }

    /// Of the library's server.
    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }

    pub(crate) fn spawn(&self, role: &str, name: &str, env: &[(&str, &str)]) -> Player {
        let (url, referee) = (self.server.url(), self.refereeing.url());
        let own = [("URL", url.as_str()), ("REFEREE", referee.as_str()), ("NAME", name)];
        let child = Child::spawn(role, &[&own[..], env].concat());
        Player { name: name.to_owned(), child }
    }

    /// Kills a process. It is noted first: who enters a room in its place comes later.
    pub(crate) async fn kill(&self, player: &mut Player, rooms: &[&str]) {
        for room in rooms {
            self.referee.note(room, "kill", &player.name).await;
        }
        player.child.kill9();
    }

    /// Waits until a room was left so often.
    pub(crate) async fn left(&self, room: &str, times: u64) {
        let what = format!("{room} to be left {times} times");
        eventually(&what, LONG, async || self.referee.count(room, "leave").await >= times).await;
    }

    pub(crate) async fn notes(&self, room: &str) -> Vec<Note> {
        self.referee.notes(room).await.iter().map(|note| Note::parse(note)).collect()
    }

    pub(crate) async fn judge(&self, room: &str, limit: u32) -> Result<Verdict, String> {
        judge(&self.notes(room).await, limit)
    }

    /// The tokens that wait for a lease of a family.
    pub(crate) async fn waiting(&self, family: &str, key: &str) -> Vec<String> {
        self.tokens(family, key, "beats").await
    }

    /// The tokens in the sorted set of a lease whose name ends so; its scores are times, and what is far above is
    /// something else.
    pub(crate) async fn tokens(&self, family: &str, key: &str, part: &str) -> Vec<String> {
        let mut probe = self.probe.clone();
        let pattern = format!("td:{{{family}:{key}}}:*{part}");
        let names: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut probe).await.unwrap();
        let Some(name) = names.first() else { return Vec::new() };
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range.arg(name).arg("-inf").arg(1_u64 << 52).query_async(&mut probe).await.unwrap()
    }

    /// Sets a key of the library's, for a while.
    pub(crate) async fn set(&self, name: &str, value: &str, left: Duration) {
        let left = u64::try_from(left.as_millis()).unwrap();
        let mut set = redis::cmd("SET");
        let () =
            set.arg(name).arg(value).arg("PX").arg(left).query_async(&mut self.probe.clone()).await.unwrap();
    }

    /// How many processes can be pushed to.
    pub(crate) async fn channels(&self) -> usize {
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg("*:wake:????????????????")
            .query_async(&mut self.probe.clone())
            .await
            .unwrap();
        channels.len()
    }

    /// Waits until so many wait for a lease of a family.
    pub(crate) async fn lined_up(&self, family: &str, key: &str, count: usize) {
        let what = format!("{count} to wait for {key}");
        eventually(&what, LONG, async || self.waiting(family, key).await.len() == count).await;
    }
}

/// What is to come to an end, also where the library is broken.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(LONG, future).await;
    outcome.unwrap_or_else(|_| panic!("waited {LONG:?} in vain for {what}"))
}

/// The store of a process. Nobody is to be told of an outage because the machine is busy.
pub(crate) fn store(url: &str) -> Store {
    Store::builder().timeout(Duration::from_secs(20)).redis(url).unwrap()
}

/// In a role: the store of its fleet.
pub(crate) fn store_of_role() -> Store {
    store(&setting("URL"))
}
