//! Lone calls on free keys take the quick paths of the scripts, and all others do not.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::{Side, TTLS};
use crate::dedupe::Claimed;
use crate::lease::holder::Exclusive;
use crate::lease::key_state::{Standing, Terms};
use crate::lease::operations::{AcquireRelease, Verb, What};
use crate::{
    BloomFilter, ConcurrencyLimitLayer, Dedupe, DedupeLayer, Mutex, MutexLayer, RwLock, RwLockLayer,
    SingleFlight, Store, WaitGroup,
};
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(86_400);

/// The general part of a script that serves one key begins with PTTL, which the quick parts need for permits alone, if there
/// are other holders.
fn took_the_quick_path(server: &RedisServer) -> bool {
    assert!(server.calls_of("evalsha") > 0, "there were no calls");
    server.calls_of("pttl") == 0
}

async fn is_quick(pair: impl AsyncFn(&RedisServer, Store)) {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    // The first calls load the script.
    pair(&server, store.clone()).await;
    server.query::<()>(&["FLUSHALL"]).unwrap();
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    pair(&server, store).await;
    assert!(took_the_quick_path(&server));
}

#[tokio::test]
async fn a_mutex() {
    is_quick(async |server, store| {
        let mutex = Mutex::new(&store, "m").unwrap();
        assert!(mutex.try_lock("k").await.unwrap().unlock().await.unwrap());
        assert_eq!(server.calls_of("time"), 1, "a release needs no time");
    })
    .await;
}

/// The first call leaves at once, the others together.
#[tokio::test]
async fn several_in_a_call() {
    let server = RedisServer::start().await;
    let mutex = Mutex::new(&patient!(server.url()), "m").unwrap();
    assert!(mutex.try_lock("k").await.unwrap().unlock().await.unwrap());
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    let lock = async |key| mutex.try_lock(key).await.unwrap().unlock().await.unwrap();
    assert_eq!(tokio::join!(lock("a"), lock("b"), lock("c")), (true, true, true));
    assert!(took_the_quick_path(&server) && server.calls_of("evalsha") < 6);
    // The general part looks for waiters again.
    assert_eq!(server.calls_of("exists"), server.calls_of("evalsha"));
}

#[tokio::test]
async fn a_permit() {
    is_quick(async |_, store| {
        let group = WaitGroup::new(&store, "g", 1).unwrap();
        assert!(group.try_add("k").await.unwrap().done().await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_permit_beside_others() {
    let server = RedisServer::start().await;
    let group = WaitGroup::new(&patient!(server.url()), "g", 3).unwrap();
    let other = group.try_add("k").await.unwrap();
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    assert!(group.try_add("k").await.unwrap().done().await.unwrap());
    // The general part removes expired holders first.
    assert_eq!(
        (server.calls_of("evalsha"), server.calls_of("zrangebyscore"), server.calls_of("pttl")),
        (2, 0, 1)
    );
    assert!(other.done().await.unwrap());
}

#[tokio::test]
async fn readers_and_a_writer() {
    is_quick(async |_, store| {
        let lock = RwLock::new(&store, "l").unwrap();
        let readers = (lock.try_read("k").await.unwrap(), lock.try_read("k").await.unwrap());
        assert!(readers.0.release().await.unwrap() && readers.1.release().await.unwrap());
        assert!(lock.try_write("k").await.unwrap().release().await.unwrap());
    })
    .await;
}

async fn is_quick_for_items(dedupe: impl Fn(&Store) -> Dedupe) {
    let server = RedisServer::start().await;
    let dedupe = dedupe(&patient!(server.url()));
    let handle = async |item| {
        let Claimed::New(claim) = dedupe.try_claim(item).await.unwrap() else { panic!("it is new") };
        assert!(claim.confirm().await.unwrap());
    };
    // The general part begins the slice, or the generation.
    handle("a").await;
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    handle("b").await;
    let Claimed::New(claim) = dedupe.try_claim("c").await.unwrap() else { panic!("it is new") };
    assert!(claim.release().await.unwrap());
    assert!(took_the_quick_path(&server));
    // What was handled is known, whichever part entered it.
    for item in ["a", "b"] {
        assert!(matches!(dedupe.try_claim(item).await.unwrap(), Claimed::Duplicate), "{item}");
    }
    handle("c").await;
}

#[tokio::test]
async fn an_item() {
    // All items are of one bucket.
    is_quick_for_items(|store| Dedupe::exact(store, "d").capacity(100).remember_for(DAY).build().unwrap())
        .await;
}

#[tokio::test]
async fn an_item_of_a_filter() {
    let filter = || BloomFilter::builder().capacity(10_000).false_positive_rate(0.01);
    let forever = |store: &Store| {
        Dedupe::builder().remember_forever().build(&filter().build(store, "d").unwrap()).unwrap()
    };
    is_quick_for_items(forever).await;
    is_quick_for_items(|store| Dedupe::new(&filter().remember_for(DAY).build(store, "d").unwrap()).unwrap())
        .await;
}

#[tokio::test]
async fn confirmations_that_leave_together_tell_how_full_the_filter_is() {
    let server = RedisServer::start().await;
    let filter = BloomFilter::builder().capacity(1000).false_positive_rate(0.01);
    let filter = filter.build(&patient!(server.url()), "d").unwrap();
    let dedupe = Dedupe::builder().remember_forever().build(&filter).unwrap();
    let handle = async |item: usize| {
        let Claimed::New(claim) = dedupe.try_claim(item.to_be_bytes()).await.unwrap() else { return };
        assert!(claim.confirm().await.unwrap());
    };
    handle(0).await;
    let first = dedupe.fill().unwrap();
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    join_all((1..100).map(handle)).await;
    assert!(server.calls_of("evalsha") < 20, "{}", server.calls_of("evalsha"));
    assert!(dedupe.fill().unwrap() > 2.0 * first, "{:?} after {first}", dedupe.fill());
}

#[tokio::test]
async fn a_flight() {
    is_quick(async |server, store| {
        let flights: SingleFlight<u32> = SingleFlight::new(&store, "f").unwrap();
        for key in ["a", "b"] {
            assert_eq!(flights.run(key, async || 7).await.unwrap(), 7);
        }
        eventually("the flights end", SOON, async || locks(server) == 0).await;
    })
    .await;
}

#[tokio::test]
async fn no_quick_path_where_another_holds() {
    let server = RedisServer::start().await;
    let mutex = Mutex::new(&patient!(server.url()), "m").unwrap();
    let guard = mutex.try_lock("k").await.unwrap();
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    assert!(mutex.try_lock("k").await.is_err());
    assert!(!took_the_quick_path(&server));
    assert!(guard.unlock().await.unwrap());
}

#[tokio::test]
async fn releases_leave_with_acquires_of_any_terms() {
    let server = RedisServer::start().await;
    let lua = Side::<Exclusive>::new(&patient!(server.url()), None, false);
    let run = async |key: &'static str, id: u8, verb, terms| {
        let scene = Arc::clone(&lua.scenes[0]);
        let call = AcquireRelease { scene, token: format!("aaaaaaaaaaaaaaaa-{id}").into(), verb, terms };
        lua.run(&lua.acquire_release, &key.into(), call).await
    };
    let acquire = || Verb::Acquire { query: Some(()), bypass: false };
    let release = || Verb::Release { withdraws: false };
    let usual = Terms::usual(TTLS[1]);
    let at_once = Terms { max_waiters: 0, ..usual };
    run("k", 1, acquire(), usual).await;
    server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
    // The first leaves at once, the others together.
    tokio::join!(
        run("a", 2, acquire(), usual),
        run("k", 1, release(), usual),
        run("b", 3, acquire(), at_once)
    );
    assert_eq!(server.calls_of("evalsha"), 2);

    // A release is sent before the acquire that comes after it, whatever comes before both.
    run("k", 1, acquire(), usual).await;
    let (_, _, _, next) = tokio::join!(
        run("c", 4, acquire(), usual),
        run("d", 5, acquire(), usual),
        run("k", 1, release(), usual),
        run("k", 6, acquire(), at_once),
    );
    assert!(matches!(next.what, What::Acquired(Standing::Held { .. })), "{next:?}");
}

/// If a server refuses writes, `try_lock` of a lock that another holds is refused, and does not fail.
#[tokio::test]
async fn a_full_server_refuses_no_answer() {
    let server = RedisServer::start().await;
    let mutex = Mutex::new(&patient!(server.url()), "m").unwrap();
    let guard = mutex.try_lock("k").await.unwrap();
    server.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    assert!(mutex.try_lock("k").await.unwrap_err().is_refused());
    server.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
    assert!(guard.unlock().await.unwrap());
}

/// A layer asks once for each request, and releases once.
#[tokio::test]
async fn a_request_is_two_calls() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let inner = service_fn(async |_: u32| Ok::<_, Infallible>(()));
    let mutex = MutexLayer::new(Mutex::new(&store, "m").unwrap(), |item: &u32| *item).layer(inner);
    let rw_lock = RwLockLayer::new(RwLock::new(&store, "l").unwrap(), |item: &u32| *item).layer(inner);
    let group = WaitGroup::new(&store, "g", 1).unwrap();
    let permits = ConcurrencyLimitLayer::new(group, |item: &u32| *item).layer(inner);
    let dedupe = Dedupe::exact(&store, "d").capacity(100).remember_for(DAY).build().unwrap();
    let items = DedupeLayer::new(dedupe, |item: &u32| *item).layer(inner);
    // The first calls load the scripts.
    for item in [1, 2] {
        server.query::<()>(&["CONFIG", "RESETSTAT"]).unwrap();
        mutex.clone().oneshot(item).await.unwrap();
        rw_lock.clone().oneshot(item).await.unwrap();
        permits.clone().oneshot(item).await.unwrap();
        items.clone().oneshot(item).await.unwrap();
    }
    eventually("the releases", SOON, async || server.calls_of("evalsha") >= 8).await;
    assert_eq!(server.calls_of("evalsha"), 8);
}

/// How many flights are under way.
fn locks(server: &RedisServer) -> usize {
    server.query::<Vec<String>>(&["KEYS", "*lock*"]).unwrap().len()
}
