//! The cost of calls on free keys for the server: few commands, in few calls.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use support::redis_server::RedisServer;
use support::{eventually, patient};

use crate::bloom_filter::BloomFilter;
use crate::dedupe::{Claimed, Dedupe};
use crate::lease::agreement::{Side, TTLS};
use crate::lease::holders::Exclusive;
use crate::lease::key_state::{AcquireTerms, Position};
use crate::lease::operations::{AcquireRelease, ReplyKind, Verb};
use crate::mutex::Mutex;
use crate::rw_lock::RwLock;
use crate::single_flight::SingleFlight;
use crate::store::Store;
use crate::wait_group::WaitGroup;

const SOON: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(86_400);

/// Runs calls twice, first to load the library, and returns the number of commands of the second run on the server.
async fn cost(server: &RedisServer, calls: impl AsyncFn()) -> u64 {
    calls().await;
    server.query::<()>(&["FLUSHALL"]).unwrap();
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    calls().await;
    commands(server)
}

/// Returns the number of commands of operations since the server's statistics were reset.
fn commands(server: &RedisServer) -> u64 {
    let others = ["fcall", "info", "config|resetstat", "keys"];
    server
        .all_calls()
        .into_iter()
        .filter(|(name, _)| !others.contains(&&**name))
        .map(|(_, calls)| calls)
        .sum()
}

#[tokio::test]
async fn leases_of_free_keys() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let mutex = async || {
        let mutex = Mutex::new(&store, "m").unwrap();
        assert!(mutex.try_lock("k").await.unwrap().unlock().await.unwrap());
        assert!(server.calls_of("time") < 4, "a release needs no time");
    };
    // The time, whether there are waiters, the lock and its fence.
    assert_eq!(cost(&server, mutex).await, 5 + 3);
    let permit = async || {
        let group = WaitGroup::new(&store, "g", 1).unwrap();
        assert!(group.try_add("k").await.unwrap().done().await.unwrap());
    };
    assert_eq!(cost(&server, permit).await, 5 + 4);
    let readers_and_a_writer = async || {
        let lock = RwLock::new(&store, "l").unwrap();
        let readers = (
            lock.try_read("k").await.unwrap(),
            lock.try_read("k").await.unwrap(),
        );
        assert!(readers.0.release().await.unwrap() && readers.1.release().await.unwrap());
        assert!(lock.try_write("k").await.unwrap().release().await.unwrap());
    };
    assert_eq!(
        cost(&server, readers_and_a_writer).await,
        (6 + 7 + 4 + 4) + (7 + 4)
    );
    let flight = async || {
        let flights: SingleFlight<u32> = SingleFlight::new(&store, "f").unwrap();
        assert_eq!(flights.run("a", async || 7).await.unwrap(), 7);
        let locks = || {
            server
                .query::<Vec<String>>(&["KEYS", "*lock*"])
                .unwrap()
                .len()
        };
        eventually("the flight ends", SOON, async || locks() == 0).await;
    };
    assert_eq!(cost(&server, flight).await, 4 + 5);
}

async fn cost_of_items(dedupe: impl Fn(&Store) -> Dedupe) -> u64 {
    let server = RedisServer::start().await;
    let dedupe = dedupe(&patient!(server.url()));
    let handle = async |item| {
        let Claimed::New(claim) = dedupe.try_claim(item).await.unwrap() else {
            panic!("it is new")
        };
        assert!(claim.confirm().await.unwrap());
    };
    // The first call begins the slice, or the generation.
    handle("a").await;
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    handle("b").await;
    let commands = commands(&server);
    let Claimed::New(claim) = dedupe.try_claim("c").await.unwrap() else {
        panic!("it is new")
    };
    assert!(claim.release().await.unwrap());
    // Items that were handled are known.
    for item in ["a", "b"] {
        assert!(
            matches!(dedupe.try_claim(item).await.unwrap(), Claimed::Duplicate),
            "{item}"
        );
    }
    handle("c").await;
    commands
}

#[tokio::test]
async fn items() {
    // All items are in one bucket.
    let exact = |store: &Store| {
        Dedupe::exact(store, "d")
            .capacity(100)
            .remember_for(DAY)
            .build()
            .unwrap()
    };
    assert_eq!(cost_of_items(exact).await, 6 + 6);
    let filter = || {
        BloomFilter::builder()
            .capacity(10_000)
            .false_positive_rate(0.01)
    };
    let forever = |store: &Store| {
        Dedupe::builder()
            .remember_forever()
            .build(&filter().build(store, "d").unwrap())
            .unwrap()
    };
    assert_eq!(cost_of_items(forever).await, 5 + 8);
    let day = |store: &Store| {
        Dedupe::new(&filter().remember_for(DAY).build(store, "d").unwrap()).unwrap()
    };
    assert_eq!(cost_of_items(day).await, 6 + 8);
}

#[tokio::test]
async fn confirmations_that_leave_together_tell_how_full_the_filter_is() {
    let server = RedisServer::start().await;
    let filter = BloomFilter::builder()
        .capacity(1000)
        .false_positive_rate(0.01);
    let filter = filter.build(&patient!(server.url()), "d").unwrap();
    let dedupe = Dedupe::builder().remember_forever().build(&filter).unwrap();
    let handle = async |item: usize| {
        let Claimed::New(claim) = dedupe.try_claim(item.to_be_bytes()).await.unwrap() else {
            return;
        };
        assert!(claim.confirm().await.unwrap());
    };
    handle(0).await;
    let first = dedupe.fill().unwrap();
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    join_all((1..100).map(handle)).await;
    assert!(
        server.calls_of("fcall") < 20,
        "{}",
        server.calls_of("fcall")
    );
    assert!(
        dedupe.fill().unwrap() > 2.0 * first,
        "{:?} after {first}",
        dedupe.fill()
    );
}

#[tokio::test]
async fn releases_leave_with_acquires_of_any_terms() {
    let server = RedisServer::start().await;
    let lua = Side::<Exclusive>::new(&patient!(server.url()), None, false);
    let run = async |key: &'static str, id: u8, verb, terms| {
        let context = Arc::clone(&lua.scenes[0]);
        let call = AcquireRelease {
            context,
            token: format!("aaaaaaaaaaaaaaaa-{id}").into(),
            verb,
            terms,
        };
        lua.run(&lua.acquire_release, &key.into(), call).await
    };
    let acquire = || Verb::Acquire {
        query: Some(()),
        bypass: false,
    };
    let release = || Verb::Release { withdraws: false };
    let usual = AcquireTerms::usual(TTLS[1]);
    let at_once = AcquireTerms {
        max_waiters: 0,
        ..usual
    };
    run("k", 1, acquire(), usual).await;
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    // The first is sent at once, the others together.
    tokio::join!(
        run("a", 2, acquire(), usual),
        run("k", 1, release(), usual),
        run("b", 3, acquire(), at_once)
    );
    assert_eq!(server.calls_of("fcall"), 2);

    // A release is sent before a later acquire, whatever comes before both.
    run("k", 1, acquire(), usual).await;
    let (_, _, _, next) = tokio::join!(
        run("c", 4, acquire(), usual),
        run("d", 5, acquire(), usual),
        run("k", 1, release(), usual),
        run("k", 6, acquire(), at_once),
    );
    assert!(
        matches!(next.what, ReplyKind::Acquired(Position::Held { .. })),
        "{next:?}"
    );
}

/// If a server refuses writes, `try_lock` of a lock that another holder has is refused, and does not fail.
#[tokio::test]
async fn a_full_server_refuses_no_answer() {
    let server = RedisServer::start().await;
    let mutex = Mutex::new(&patient!(server.url()), "m").unwrap();
    let guard = mutex.try_lock("k").await.unwrap();
    server
        .query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .unwrap();
    assert!(mutex.try_lock("k").await.unwrap_err().is_refused());
    server
        .query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .unwrap();
    assert!(guard.unlock().await.unwrap());
}
