//! The referee: a Redis of its own that writes down what it is told.

use std::sync::LazyLock;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, AsyncConnectionConfig, Script};
use tower_distributed::{Lease, LeaseHandle};

use support::processes::setting;

/// Writes down a note with the time; returns how many of its kind there are.
static NOTE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
         local now = string.format('%.0f', time[1] * 1000000 + time[2])
         redis.call('RPUSH', KEYS[1], now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2])
         return redis.call('HINCRBY', KEYS[2], ARGV[1], 1)",
    )
});

#[derive(Clone)]
pub(crate) struct Referee(MultiplexedConnection);

impl Referee {
    /// A connection that waits as long as it takes.
    pub(crate) async fn at(url: &str) -> Self {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url).unwrap();
        Self(client.get_multiplexed_async_connection_with_config(&config).await.unwrap())
    }

    /// The one of the fleet that this process was started by.
    pub(crate) async fn of_role() -> Self {
        Self::at(&setting("REFEREE")).await
    }

    /// µs.
    pub(crate) async fn time(&self) -> u64 {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query_async(&mut self.0.clone()).await.unwrap();
        seconds * 1_000_000 + micros
    }

    /// Notes something about a room; returns how many notes with this verb there are.
    pub(crate) async fn note(&self, room: &str, verb: &str, rest: &str) -> u64 {
        let mut call = NOTE.key(format!("notes:{room}"));
        call.key(format!("counts:{room}")).arg(verb).arg(rest);
        call.invoke_async(&mut self.0.clone()).await.unwrap()
    }

    /// How many notes with this verb there are.
    pub(crate) async fn count(&self, room: &str, verb: &str) -> u64 {
        let mut get = redis::cmd("HGET");
        let count: Option<u64> =
            get.arg(format!("counts:{room}")).arg(verb).query_async(&mut self.0.clone()).await.unwrap();
        count.unwrap_or(0)
    }

    /// All that was noted about a room.
    pub(crate) async fn notes(&self, room: &str) -> Vec<String> {
        let mut range = redis::cmd("LRANGE");
        range.arg(format!("notes:{room}")).arg(0).arg(-1).query_async(&mut self.0.clone()).await.unwrap()
    }

    /// Tells a process what to do.
    pub(crate) async fn order(&self, name: &str, order: &str) {
        let mut push = redis::cmd("RPUSH");
        let _: u64 =
            push.arg(format!("orders:{name}")).arg(order).query_async(&mut self.0.clone()).await.unwrap();
    }

    /// The next order to this process. Nothing else can be said meanwhile.
    pub(crate) async fn next_order(&self, name: &str) -> String {
        let mut pop = redis::cmd("BLPOP");
        let (_, order): (String, String) =
            pop.arg(format!("orders:{name}")).arg(0).query_async(&mut self.0.clone()).await.unwrap();
        order
    }

    /// Enters a room, which only who holds `lease` may be in.
    pub(crate) async fn enter(&self, room: &str, who: &str, weight: u32, lease: &Lease) -> Visit {
        let handle = lease.handle();
        self.note(room, "enter", &format!("{who} {weight} {}", handle.fence().unwrap_or(0))).await;
        Visit { referee: self.clone(), room: room.to_owned(), who: who.to_owned(), handle }
    }
}

/// A stay in a room.
pub(crate) struct Visit {
    referee: Referee,
    room: String,
    who: String,
    handle: LeaseHandle,
}

impl Visit {
    pub(crate) async fn leave(&self) {
        self.referee.note(&self.room, "leave", &self.who).await;
    }

    /// Says whether the lease was still held when it was given back, after leaving. If not, the visit does not
    /// count; but a lease that is gone before its time is the library's fault.
    pub(crate) async fn settle(self, released: bool) {
        if !released {
            let is_late = self.handle.until() <= tokio::time::Instant::now();
            self.referee.note(&self.room, if is_late { "late" } else { "gone" }, &self.who).await;
        }
    }
}
