//! A fleet: a Redis for the library, another for the referee, and the processes.

use std::time::Duration;

use tower_distributed::Store;

use crate::judge::{Note, Verdict, judge};
use crate::referee::Referee;
use support::eventually;
use support::processes::{Child, setting};
use support::redis_server::RedisServer;

/// For what takes as long as it takes on a slow machine.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// How long a grant to a waiter stands until it is confirmed.
pub(crate) const CLAIM: Duration = Duration::from_millis(1500);

/// Among the beats of a key stand those who wait, and from this on those who have withdrawn.
const WITHDRAWN: u64 = 1 << 52;

pub(crate) struct Fleet {
    pub(crate) server: RedisServer,
    refereeing: RedisServer,
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
        let referee = Referee::at(&refereeing.url()).await;
        Self { server, refereeing, referee }
    }

    pub(crate) fn store(&self) -> Store {
        store(&self.server.url())
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

    pub(crate) async fn notes(&self, room: &str) -> Vec<Note> {
        self.referee.notes(room).await.iter().map(|note| Note::parse(note)).collect()
    }

    pub(crate) async fn judge(&self, room: &str, limit: u32) -> Result<Verdict, String> {
        judge(&self.notes(room).await, limit)
    }

    /// How many processes can be pushed to.
    pub(crate) fn channels(&self) -> usize {
        let channels: Vec<String> =
            self.server.query(&["PUBSUB", "CHANNELS", "*:wake:????????????????"]).unwrap();
        channels.len()
    }

    /// Waits until so many wait for a key of a family.
    pub(crate) async fn lined_up(&self, family: &str, key: &str, count: usize) {
        let what = format!("{count} to wait for {family}:{key}");
        eventually(&what, LONG, async || self.waiting(family, key) == count).await;
    }

    fn waiting(&self, family: &str, key: &str) -> usize {
        let beats = format!("td:{{{family}:{key}}}:*beats");
        let beats: Vec<String> = self.server.query(&["KEYS", &beats]).unwrap();
        let Some(beats) = beats.first() else { return 0 };
        self.server.query(&["ZCOUNT", beats, "-inf", &format!("({WITHDRAWN}")]).unwrap()
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
