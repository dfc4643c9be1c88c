//! What the tests of this crate have in common.

use std::time::Duration;

use tokio::runtime::Runtime;
use tower_distributed::token_bucket::Decision;
use tower_distributed::{Error, Mutex, Quota, Store, TokenBucket};

use support::redis_server::RedisServer;
use support::{eventually_blocking, patient, within};

/// For what is bound to happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// So long that nothing ends by it.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// The time-outs of stores that meet an outage. A healthy server answers earlier, on a busy machine too.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// A store whose time-outs are not met.
pub(crate) fn open(url: &str) -> Store {
    patient!().redis(url).unwrap()
}

/// A store for an outage that ends calls by their time-outs.
pub(crate) fn impatient(url: &str) -> Store {
    let builder = Store::builder()
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT)
        .queue_timeout(TIMEOUT);
    builder.redis(url).unwrap()
}

/// Makes progress only inside of `block_on`.
pub(crate) fn current_thread() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) fn multi_thread() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) fn start_server() -> RedisServer {
    current_thread().block_on(RedisServer::start())
}

/// Runs a test that may block for ever, on a thread of its own.
pub(crate) fn blocking(test: impl FnOnce(RedisServer) + Send + 'static) {
    let server = start_server();
    within(4 * SOON, "the test", move || test(server));
}

/// A bucket that is never empty: a call that is not admitted has met an outage.
pub(crate) fn wide_bucket(store: &Store) -> TokenBucket {
    TokenBucket::new(store, "wide", Quota::per_second(4_000_000_000)).unwrap()
}

/// Locks that are free again only by a release.
pub(crate) fn long_locks(store: &Store) -> Mutex {
    Mutex::builder()
        .strict_fifo()
        .ttl(LONG)
        .build(store, "locks")
        .unwrap()
}

/// Whether nobody has the lock of a key of [`long_locks`].
pub(crate) fn is_free(server: &RedisServer, key: &str) -> bool {
    server.query(&["EXISTS", &format!("td:{{locks:{key}}}:lock")]) == Ok(0)
}

pub(crate) fn is_served(outcome: &Result<Decision, Error>) -> bool {
    outcome.as_ref().is_ok_and(Decision::is_admitted)
}

/// How many stores hear what is pushed to them.
pub(crate) fn subscribed(server: &RedisServer) -> usize {
    server
        .query::<Vec<String>>(&["PUBSUB", "CHANNELS", "td:wake:????????????????"])
        .unwrap()
        .len()
}

/// The number of connections at the server, without the one that asks.
pub(crate) fn connections(server: &RedisServer) -> usize {
    let clients: String = server.query(&["CLIENT", "LIST"]).unwrap();
    // Redis 6.2 does not tell the subcommand.
    let asks =
        |client: &str| client.contains(" cmd=client|list ") || client.contains(" cmd=client ");
    clients.lines().filter(|client| !asks(client)).count()
}

/// Waits until so many connections are left at most.
pub(crate) fn are_left(server: &RedisServer, most: usize) {
    eventually_blocking("the connections to go", SOON, || {
        connections(server) <= most
    });
}

/// The number of calls of scripts and functions that the server has run.
pub(crate) fn scripts_run(server: &RedisServer) -> u64 {
    ["evalsha", "eval", "fcall"]
        .map(|command| server.calls_of(command))
        .iter()
        .sum()
}
