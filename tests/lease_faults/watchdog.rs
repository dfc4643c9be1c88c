//! Leases that are renewed, that are not, and that are gone when they are to be.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout};
use tower_distributed::{Mutex, Store};

use crate::kinds::{Family, LONG, SOON, Taken, open};
use support::eventually;
use support::redis_server::RedisServer;

/// Renewed every third of it.
const TTL: Duration = Duration::from_secs(6);

/// The families in some stores, and a quorum of these.
fn families(stores: Vec<Store>) -> Vec<Family> {
    let mut families = Family::each(&stores[0], TTL).to_vec();
    families.push(Family::Mutex(Mutex::builder().ttl(TTL).build_quorum(stores, "quorum").unwrap()));
    families
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_for_many_times_its_time_to_live() {
    let families = families((0..3).map(|_| Store::in_memory()).collect());
    let kept = families.iter().map(|family| async move {
        let taken = family.take("k").await.unwrap();
        let (first, token) = (taken.until(), taken.token().to_owned());
        assert!(timeout(100 * TTL, taken.lost()).await.is_err(), "{} was lost", family.name());
        assert!(taken.is_held() && taken.token() == token && taken.until() > first + 99 * TTL);
        assert!(family.try_take("k").await.unwrap_err().is_refused());
        assert!(taken.release().await.unwrap());
        family.try_take("k").await.unwrap().release().await.unwrap()
    });
    assert!(join_all(kept).await.into_iter().all(|was_held| was_held));
}

#[tokio::test]
async fn a_lease_on_a_server_is_renewed() {
    let servers = join_all((0..3).map(|_| RedisServer::start())).await;
    let families = families(servers.iter().map(|server| open(&server.url())).collect());
    let kept = families.iter().map(|family| async move {
        let taken = family.take("k").await.unwrap();
        let (first, token) = (taken.until(), taken.token().to_owned());
        let renewed = async || taken.until() > first;
        tokio::select! {
            () = taken.lost() => panic!("{} was lost", family.name()),
            () = eventually("a renewal", SOON, renewed) => {}
        }
        assert!(taken.is_held() && taken.token() == token);
        assert!(family.try_take("k").await.unwrap_err().is_refused());
        assert!(taken.release().await.unwrap());
        family.try_take("k").await.unwrap().release().await.unwrap()
    });
    assert!(join_all(kept).await.into_iter().all(|was_held| was_held));
}

/// A lease that was waited for begins as a grant of 1.5 s: it is made a full one once, and then left alone.
#[tokio::test]
async fn without_a_watchdog_a_lease_ends() {
    const TTL: Duration = Duration::from_secs(3);
    let server = &RedisServer::start().await;
    for (store, server) in [(Store::in_memory(), None), (open(&server.url()), Some(server))] {
        let ended = Family::each_watched(&store, TTL, false).map(|family| async move {
            let (at_once, waited) =
                (family.take("at once").await.unwrap(), after_another(&family, server).await);
            let got = Instant::now();
            for taken in [at_once, waited] {
                timeout(SOON, taken.lost()).await.expect("it does not end");
                assert!(!taken.is_held() && Instant::now() >= taken.until());
                assert!(taken.until() > got + Duration::from_secs(2), "it ended too early");
                let key = std::str::from_utf8(taken.key().as_bytes()).unwrap();
                eventually("others to get it", SOON, async || family.try_take(key).await.is_ok()).await;
                assert!(taken.extend().await.unwrap_err().is_lost());
                assert!(!taken.release().await.unwrap());
            }
        });
        join_all(ended).await;
    }
}

async fn after_another(family: &Family, server: Option<&RedisServer>) -> Taken {
    let holder = family.take("waited").await.unwrap();
    let next = tokio::spawn({
        let family = family.clone();
        async move { family.take("waited").await.unwrap() }
    });
    tokio::task::yield_now().await;
    if let Some(server) = server {
        // For a mutex it waits in the process that holds.
        let places = if let Family::Mutex(_) = family { 0 } else { 1 };
        eventually("it to wait", SOON, async || family.waiting(server, "waited") == places).await;
    }
    assert!(holder.release().await.unwrap());
    next.await.unwrap()
}

/// Somebody deletes the key. The next renewal tells, long before the time would have run out.
#[tokio::test]
async fn a_deleted_lease_is_told_lost_at_its_next_renewal() {
    const TTL: Duration = Duration::from_secs(6);
    let server = &RedisServer::start().await;
    let store = open(&server.url());
    let told = Family::each(&store, TTL).map(|family| async move {
        let taken = family.take("k").await.unwrap();
        let handle = taken.handle();
        server.cli(&["DEL", &family.holders("k")]);
        assert!(taken.is_held(), "nobody can know yet");
        timeout(SOON, handle.lost()).await.expect("nobody tells");
        assert!(taken.until() > Instant::now(), "it was not told, its time ran out");
        assert!(!taken.is_held() && !handle.is_held());
        assert!(taken.extend().await.unwrap_err().is_lost());
        assert!(!taken.release().await.unwrap());
    });
    join_all(told).await;
}

/// Nor does it take a watchdog: whoever asks is told.
#[tokio::test]
async fn a_deleted_lease_is_told_lost_to_who_extends_or_releases_it() {
    let server = RedisServer::start().await;
    for family in Family::each_watched(&open(&server.url()), LONG, false) {
        let taken = family.take("k").await.unwrap();
        server.cli(&["DEL", &family.holders("k")]);
        let error = taken.extend().await.unwrap_err();
        assert!(error.is_lost() && !error.is_unavailable(), "{error}");
        timeout(SOON, taken.lost()).await.expect("nobody tells");
        // Another one holds it by now, and goes on.
        let next = family.try_take("k").await.unwrap();
        assert!(taken.extend().await.unwrap_err().is_lost());
        assert!(!taken.release().await.unwrap());
        assert!(next.is_held() && next.release().await.unwrap());

        let taken = family.take("k").await.unwrap();
        server.cli(&["DEL", &family.holders("k")]);
        assert!(!taken.release().await.unwrap());
    }
}

/// They leave in one call.
#[tokio::test]
async fn many_extensions_at_once_are_all_answered() {
    let server = RedisServer::start().await;
    for store in [Store::in_memory(), open(&server.url())] {
        for family in Family::each_watched(&store, LONG, false) {
            let (taken, other) = (family.take("k").await.unwrap(), family.take("other").await.unwrap());
            for round in 0..3 {
                let extensions = (0..6).map(|i| if i % 3 == round { other.extend() } else { taken.extend() });
                for extended in join_all(extensions).await {
                    extended.unwrap();
                }
                for extended in join_all((0..4).map(|_| taken.extend())).await {
                    extended.unwrap();
                }
            }
            assert!(taken.release().await.unwrap() && other.release().await.unwrap());
        }
    }
}

/// The runtime that it was got on is gone: a drop gives it back all the same, from wherever it happens.
#[test]
fn a_lease_outlives_its_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime().block_on(RedisServer::start());
    for kind in 0..3 {
        // Its connection goes with the runtime too, so each has a store of its own.
        for store in [Store::in_memory(), open(&server.url())] {
            let family = &Family::each(&store, LONG)[kind];
            let first = runtime();
            let taken = first.block_on(family.take("k")).unwrap();
            let mut waiting = tokio_test::task::spawn(family.take("k"));
            first.block_on(async { tokio_test::assert_pending!(waiting.poll()) });
            drop(first);
            drop((waiting, taken));
            let is_free = async || match family.try_take("k").await {
                Ok(taken) => taken.release().await.is_ok(),
                Err(error) => !error.is_refused() && !error.is_unavailable(),
            };
            runtime().block_on(eventually("it to be released", SOON, is_free));
        }
    }
}
