//! Redis is away for a while, or forgets its scripts and functions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio::task::JoinHandle;
use tower_distributed::{Error, Mutex, RwLock, Store, WaitGroup};

use crate::kinds::{Family, LONG, SOON, left, open};
use support::eventually;
use support::keys::keys_without_ttl;
use support::program::has_functions;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

#[tokio::test]
async fn an_outage_is_told_as_such() {
    let server = RedisServer::start().await;
    let store = open(&server.url());
    let families = Family::each(&store, LONG);
    let held = join_all(families.iter().map(|family| family.take("held"))).await;
    server.kill9();
    let told = |error: Error| assert!(error.is_unavailable() && !error.is_refused(), "{error}");
    for (family, held) in families.iter().zip(held) {
        let held = held.unwrap();
        told(family.take("k").await.unwrap_err());
        told(family.try_take("k").await.unwrap_err());
        let error = held.extend().await.unwrap_err();
        assert!(!error.is_lost(), "{error}");
        told(error);
        assert!(held.is_held(), "it has not run out");
        told(held.release().await.unwrap_err());
        match family {
            Family::Permits(permits) => {
                told(permits.count("k").await.unwrap_err());
                told(permits.wait("k").await.unwrap_err());
            }
            Family::Mutex(mutex) => told(mutex.is_locked("k").await.unwrap_err()),
            Family::Writers(lock) => told(lock.read("k").await.unwrap_err()),
        }
    }
    server.restart().await;
    for family in &families {
        eventually("its end", SOON, async || family.try_take("k").await.is_ok()).await;
    }
}

/// The longest wait for a turn begins with the answer of the server: without one, nobody knows whether a turn was needed.
#[tokio::test]
async fn who_hears_nothing_is_not_told_that_its_wait_was_too_long() {
    let server = RedisServer::start().await;
    let store = open(&server.url());
    for wait in [Duration::ZERO, Duration::from_millis(20)] {
        let mutex = Mutex::builder().max_wait(wait).build(&store, "m").unwrap();
        let permits = WaitGroup::builder(1).max_wait(wait).build(&store, "p").unwrap();
        let lock = RwLock::builder().max_wait(wait).build(&store, "rw").unwrap();
        let free = "what is free is had, however short the wait";
        assert!(mutex.lock("k").await.expect(free).unlock().await.unwrap());
        assert!(permits.add("k").await.expect(free).done().await.unwrap());
        assert!(lock.write("k").await.expect(free).release().await.unwrap());
        server.pause();
        let (locked, added) = (mutex.lock("k").await.map(drop), permits.add("k").await.map(drop));
        let errors = [locked, added, lock.write("k").await.map(drop)].map(Result::unwrap_err);
        server.resume();
        for error in errors {
            assert!(error.is_unavailable() && !error.is_refused(), "{wait:?}: {error}");
        }
        let is_free = async || mutex.try_lock("k").await.is_ok() && permits.try_add("k").await.is_ok();
        eventually("its end", SOON, is_free).await;
    }
}

/// Given back once the way is free again, long before the time would have run out.
#[tokio::test]
async fn what_is_dropped_or_released_during_an_outage_is_free_after_it() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = open(&proxy.url());
    let mut held = Vec::new();
    for family in Family::each(&store, LONG) {
        held.push((family.take("dropped").await.unwrap(), family.take("released").await.unwrap()));
    }
    proxy.cut();
    for (dropped, released) in held {
        drop(dropped);
        assert!(released.release().await.unwrap_err().is_unavailable());
    }
    assert_eq!((left(&server, "dropped").len(), left(&server, "released").len()), (3, 3));
    proxy.heal();
    for key in ["dropped", "released"] {
        eventually("it to be given back", SOON, async || left(&server, key).is_empty()).await;
    }
    assert_eq!(keys_without_ttl(&server), [""; 0]);
}

/// Callers that take and release a key of each kind on and on, one at a time for each.
struct Contention {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    callers: Vec<JoinHandle<()>>,
}

impl Contention {
    fn start(families: &[Family]) -> Self {
        let (stop, turns, failed) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let mut callers = Vec::new();
        for family in families {
            let held = Arc::new(AtomicBool::new(false));
            for _ in 0..6 {
                let (family, held, stop) = (family.clone(), held.clone(), stop.clone());
                let (turns, failed) = (turns.clone(), failed.clone());
                callers.push(tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        if let Err(error) = turn(&family, &held, &turns).await {
                            assert!(error.is_unavailable(), "{error}");
                            failed.fetch_add(1, Ordering::Relaxed);
                            // The breaker answers at once; do not spin.
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    }
                }));
            }
        }
        Self { stop, turns, failed, callers }
    }

    async fn more_turns(&self) {
        let before = self.turns.load(Ordering::Relaxed);
        eventually("turns", SOON, async || self.turns.load(Ordering::Relaxed) > before + 50).await;
    }

    async fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
        (self.turns.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }
}

async fn turn(family: &Family, held: &AtomicBool, turns: &AtomicU64) -> Result<(), Error> {
    let taken = family.take("k").await?;
    assert!(!held.swap(true, Ordering::SeqCst), "two hold {}", family.name());
    tokio::task::yield_now().await;
    held.store(false, Ordering::SeqCst);
    turns.fetch_add(1, Ordering::Relaxed);
    assert!(taken.release().await?, "it was not held to the end");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_and_functions_are_never_noticed() {
    let servers = join_all((0..3).map(|_| RedisServer::start())).await;
    let stores: Vec<_> = servers.iter().map(|server| open(&server.url())).collect();
    let mut families = Family::each(&stores[0], LONG).to_vec();
    let quorum = Mutex::builder().ttl(LONG).retry_delay(|_| Duration::from_millis(2)).tries(u32::MAX);
    families.push(Family::Mutex(quorum.build_quorum(stores, "quorum").unwrap()));
    let contention = Contention::start(&families);
    for _ in 0..40 {
        contention.more_turns().await;
        for server in &servers {
            server.cli(&["SCRIPT", "FLUSH"]);
            if has_functions() {
                server.cli(&["FUNCTION", "FLUSH"]);
            }
        }
    }
    contention.more_turns().await;
    let (turns, failed) = contention.end().await;
    println!("{turns} turns while scripts and functions were flushed 40 times");
    assert_eq!(failed, 0);
}

/// Calls fail whose answers are lost with their connections; nobody is let in beside another, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_let_nobody_in_beside_another() {
    let server = RedisServer::start().await;
    let stores = [open(&server.url()), open(&server.url())];
    let contention = stores.map(|store| Family::each(&store, LONG));
    let contention = Contention::start(contention.as_flattened());
    for _ in 0..40 {
        contention.more_turns().await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    contention.more_turns().await;
    let (turns, failed) = contention.end().await;
    println!("{turns} turns and {failed} failures while connections were killed 40 times");
    eventually("nothing to be left", SOON, async || left(&server, "k").is_empty()).await;
    assert_eq!(keys_without_ttl(&server), [""; 0]);
}

/// Who waits through an outage is served after it; the limit holds all along.
#[tokio::test]
async fn who_waits_through_an_outage_is_served_after_it() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let near = WaitGroup::new(&open(&server.url()), "permits", 1).unwrap();
    let far = WaitGroup::new(&open(&proxy.url()), "permits", 1).unwrap();
    for stalled in [false, true] {
        let holder = near.add("k").await.unwrap();
        let waiter = tokio::spawn({
            let far = far.clone();
            async move { far.add("k").await }
        });
        eventually("it to wait", SOON, async || {
            Family::Permits(near.clone()).waiting(&server, "k") == 1 && !waiter.is_finished()
        })
        .await;
        if stalled {
            proxy.stall()
        } else {
            proxy.cut()
        }
        assert!(holder.done().await.unwrap());
        assert!(near.count("k").await.unwrap() <= 1);
        proxy.heal();
        match tokio::time::timeout(SOON, waiter).await.expect("it is forgotten").unwrap() {
            Ok(permit) => assert!(permit.done().await.unwrap()),
            Err(error) => assert!(error.is_unavailable(), "{error}"),
        }
        eventually("nothing to be left", SOON, async || left(&server, "k").is_empty()).await;
    }
}

/// What could not be released is released as long as it lasts, not as long as a waiter would count as alive.
#[tokio::test]
async fn what_could_not_be_released_is_so_after_a_long_outage() {
    const OUTAGE: Duration = Duration::from_secs(8);
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::builder().timeout(Duration::from_millis(300)).redis(&proxy.url()).unwrap();
    let mutex = Mutex::builder().ttl(LONG).build(&store, "m").unwrap();
    let guard = mutex.lock("k").await.unwrap();
    proxy.cut();
    let since = tokio::time::Instant::now();
    assert!(guard.unlock().await.unwrap_err().is_unavailable());
    eventually("the outage to be long", SOON, async || since.elapsed() > OUTAGE).await;
    assert_eq!(server.cli(&["EXISTS", "td:{m:k}:lock"]), "1");
    proxy.heal();
    eventually("the lock to be free", SOON, async || server.cli(&["EXISTS", "td:{m:k}:lock"]) == "0").await;
}

/// A release that was asked for is not forgotten: a shutdown waits for it, and counts it if it cannot be sent.
#[tokio::test]
async fn shutdown_says_what_could_not_be_released() {
    const LIMIT: Duration = Duration::from_millis(500);
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let store = Store::builder().timeout(Duration::from_millis(300)).redis(&proxy.url()).unwrap();
    let mut held = Vec::new();
    for family in Family::each(&store, LONG) {
        held.push(family.take("k").await.unwrap());
    }
    proxy.cut();
    drop(held);
    let error = store.shutdown(LIMIT).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert!(error.is_unavailable() && error.to_string().contains("3 releases"), "{error}");
    proxy.heal();
    store.shutdown(SOON).await.unwrap();
    assert_eq!(left(&server, "k"), [""; 0]);
}
