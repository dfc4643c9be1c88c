//! What the tests of this crate have in common.

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::RwLock;
use tower_distributed::token_bucket::Decision;
use tower_distributed::{Error, Mutex, Quota, Store, TokenBucket};

use support::redis_server::RedisServer;
use support::{eventually, eventually_blocking, within};

/// The limit for recovery after an outage and for detached releases.
pub(crate) const RECOVERY: Duration = Duration::from_secs(5);

/// The limit for one call: the sum of the default time-outs, with room for a slow machine.
pub(crate) const CALL: Duration = Duration::from_secs(8);

/// Held for writing by tests that load both processors, for reading by tests with time limits.
pub(crate) static MACHINE: RwLock<()> = RwLock::const_new(());

/// Makes progress only inside of `block_on`.
pub(crate) fn current_thread() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub(crate) fn multi_thread() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Runs a test on a thread of its own, within a limit, while no other test loads both processors.
pub(crate) fn timed<S: Send + 'static>(
    limit: Duration,
    scene: fn() -> S,
    test: impl FnOnce(S) + Send + 'static,
) {
    let _turn = MACHINE.blocking_read();
    let scene = scene();
    within(limit, "the test", move || test(scene));
}

pub(crate) fn start_server() -> RedisServer {
    current_thread().block_on(RedisServer::start())
}

pub(crate) fn restart(server: &RedisServer) {
    current_thread().block_on(server.restart());
}

/// A bucket that is never empty: a call that is not admitted has met an outage.
pub(crate) fn wide_bucket(store: &Store) -> TokenBucket {
    TokenBucket::new(store, "wide", Quota::per_second(4_000_000_000)).unwrap()
}

/// Locks with a time to live longer than any test: free again only by a release.
pub(crate) fn long_locks(store: &Store) -> Mutex {
    Mutex::builder().strict_fifo().ttl(Duration::from_secs(60)).build(store, "locks").unwrap()
}

/// What the server calls the lock of a key of [`long_locks`].
pub(crate) fn lock_name(key: &str) -> String {
    format!("td:{{locks:{key}}}:lock")
}

pub(crate) fn is_free(server: &RedisServer, key: &str) -> bool {
    server.query(&["EXISTS", &lock_name(key)]) == Ok(0)
}

pub(crate) fn is_served(outcome: &Result<Decision, Error>) -> bool {
    outcome.as_ref().is_ok_and(Decision::is_admitted)
}

/// How a server goes away.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outage {
    /// Its process is killed, and a new one started.
    Killed,
    /// Its process stands still for a while.
    Stopped,
}

/// An outage that lasts until the breaker is open, and the recovery. Only `call` makes calls.
pub(crate) fn recovers(
    server: &RedisServer,
    outage: Outage,
    mut call: impl FnMut() -> Result<Decision, Error>,
) {
    eventually_blocking("the first answer", RECOVERY, || is_served(&call()));
    match outage {
        Outage::Killed => server.kill9(),
        Outage::Stopped => server.pause(),
    }
    for _ in 0..4 {
        let error = call().unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }
    match outage {
        Outage::Killed => restart(server),
        Outage::Stopped => server.resume(),
    }
    eventually_blocking("an answer after the outage", RECOVERY, || is_served(&call()));
    for _ in 0..20 {
        assert!(is_served(&call()), "an outage that had ended came back");
    }
}

/// The number of connections at the server, without the one that asks.
pub(crate) fn connections(server: &RedisServer) -> usize {
    let clients: String = server.query(&["CLIENT", "LIST"]).unwrap();
    // Redis 6.2 does not tell the subcommand.
    let asks = |client: &str| client.contains(" cmd=client|list ") || client.contains(" cmd=client ");
    clients.lines().filter(|client| !asks(client)).count()
}

/// The number of calls of scripts and functions that the server has run.
pub(crate) fn scripts_run(server: &RedisServer) -> u64 {
    ["evalsha", "eval", "fcall"].map(|command| server.calls_of(command)).iter().sum()
}

/// Waits until the server has run no script for 300 ms; returns the number of script calls.
pub(crate) async fn settled_scripts(server: &RedisServer) -> u64 {
    let (mut last, mut since) = (scripts_run(server), tokio::time::Instant::now());
    eventually("the server to run no more scripts", Duration::from_secs(20), async || {
        let now = scripts_run(server);
        if now != last {
            (last, since) = (now, tokio::time::Instant::now());
        }
        since.elapsed() > Duration::from_millis(300)
    })
    .await;
    last
}
