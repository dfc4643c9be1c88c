//! Where the work is done that is to be done once: a Redis of its own, which writes down what it is told.

use std::sync::LazyLock;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, AsyncConnectionConfig, Script};

use support::processes::setting;

/// Writes down a note about a key with the time; returns how many of its kind there are.
static NOTE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
         local now = string.format('%.0f', time[1] * 1000000 + time[2])
         redis.call('RPUSH', KEYS[1], now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2])
         return redis.call('HINCRBY', KEYS[2], ARGV[1], 1)",
    )
});

#[derive(Clone)]
pub(crate) struct Origin(MultiplexedConnection);

/// What was written down about a key.
#[derive(Debug)]
pub(crate) struct Note {
    /// µs.
    pub(crate) at: u64,
    pub(crate) verb: String,
    pub(crate) rest: String,
}

impl Origin {
    pub(crate) async fn at(url: &str) -> Self {
        // A connection that waits as long as it takes.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url).unwrap();
        Self(client.get_multiplexed_async_connection_with_config(&config).await.unwrap())
    }

    /// The one of the fleet that this process was started by.
    pub(crate) async fn of_role() -> Self {
        Self::at(&setting("ORIGIN")).await
    }

    /// Notes something about a key; returns how many notes with this verb there are.
    pub(crate) async fn note(&self, key: &str, verb: &str, rest: &str) -> u64 {
        let mut call = NOTE.key(format!("notes:{key}"));
        call.key(format!("counts:{key}")).arg(verb).arg(rest);
        call.invoke_async(&mut self.0.clone()).await.unwrap()
    }

    /// A run for a key: what comes of it is never the same.
    pub(crate) async fn run(&self, key: &str, name: &str) -> Vec<u8> {
        let number = self.note(key, "run", name).await;
        [format!("{key} {number} {name} ").as_bytes(), &rand::random::<[u8; 32]>()].concat()
    }

    pub(crate) async fn notes(&self, key: &str) -> Vec<Note> {
        let mut range = redis::cmd("LRANGE");
        let notes: Vec<String> =
            range.arg(format!("notes:{key}")).arg(0).arg(-1).query_async(&mut self.0.clone()).await.unwrap();
        let parse = |note: &String| {
            let mut words = note.splitn(3, ' ').map(str::to_owned);
            let mut next = || words.next().unwrap();
            Note { at: next().parse().unwrap(), verb: next(), rest: next() }
        };
        notes.iter().map(parse).collect()
    }

    /// How many notes with this verb there are.
    pub(crate) async fn count(&self, key: &str, verb: &str) -> u64 {
        let mut get = redis::cmd("HGET");
        let count: Option<u64> =
            get.arg(format!("counts:{key}")).arg(verb).query_async(&mut self.0.clone()).await.unwrap();
        count.unwrap_or(0)
    }

    /// Tells a process what to do.
    pub(crate) async fn order(&self, name: &str, order: &str) {
        let mut push = redis::cmd("RPUSH");
        let _: u64 =
            push.arg(format!("orders:{name}")).arg(order).query_async(&mut self.0.clone()).await.unwrap();
    }

    /// The next order to this process. Nothing else can be said over this connection meanwhile.
    pub(crate) async fn next_order(&self, name: &str) -> String {
        let mut pop = redis::cmd("BLPOP");
        let (_, order): (String, String) =
            pop.arg(format!("orders:{name}")).arg(0).query_async(&mut self.0.clone()).await.unwrap();
        order
    }
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
