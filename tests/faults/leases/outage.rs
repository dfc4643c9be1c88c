//! Redis is away for a while.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Error, Mutex, RwLock, WaitGroup};

use crate::leases::kinds::{Family, LONG, SOON, hasty, left, open, with_proxy};
use support::eventually;
use support::redis_server::RedisServer;

fn is_told(error: &Error) {
    assert!(error.is_unavailable() && !error.is_refused(), "{error}");
}

#[tokio::test]
async fn an_outage_is_told_as_such() {
    let server = RedisServer::start().await;
    let families = Family::each(&open(&server.url()), LONG);
    let held = join_all(families.iter().map(|family| family.take("held"))).await;
    server.kill9();
    for (family, held) in families.iter().zip(held) {
        let held = held.unwrap();
        is_told(&family.take("k").await.unwrap_err());
        is_told(&family.try_take("k").await.unwrap_err());
        let error = held.extend().await.unwrap_err();
        assert!(!error.is_lost(), "{error}");
        is_told(&error);
        assert!(held.is_held(), "it has not run out");
        is_told(&held.release().await.unwrap_err());
        match family {
            Family::Permits(permits) => {
                is_told(&permits.count("k").await.unwrap_err());
                is_told(&permits.wait("k").await.unwrap_err());
            }
            Family::Mutex(mutex) => is_told(&mutex.is_locked("k").await.unwrap_err()),
            Family::Writers(lock) => is_told(&lock.read("k").await.unwrap_err()),
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
        let families = [
            Family::Permits(
                WaitGroup::builder(1)
                    .max_wait(wait)
                    .build(&store, "p")
                    .unwrap(),
            ),
            Family::Mutex(Mutex::builder().max_wait(wait).build(&store, "m").unwrap()),
            Family::Writers(
                RwLock::builder()
                    .max_wait(wait)
                    .build(&store, "rw")
                    .unwrap(),
            ),
        ];
        for family in &families {
            let taken = family
                .take("k")
                .await
                .expect("what is free is had, however short the wait");
            assert!(taken.release().await.unwrap());
        }
        server.pause();
        let outcomes = join_all(families.iter().map(|family| family.take("k"))).await;
        server.resume();
        outcomes
            .into_iter()
            .for_each(|outcome| is_told(&outcome.unwrap_err()));
        for family in &families {
            eventually("its end", SOON, async || family.try_take("k").await.is_ok()).await;
        }
    }
}

/// A release that was asked for is not forgotten: a shutdown waits for it, and counts it if it cannot be sent.
#[tokio::test]
async fn shutdown_says_what_could_not_be_released() {
    const LIMIT: Duration = Duration::from_millis(500);
    let (server, proxy) = with_proxy().await;
    let store = hasty(&proxy.url(), 300);
    let held = join_all(
        Family::each(&store, LONG)
            .iter()
            .map(|family| family.take("k")),
    )
    .await;
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    proxy.cut();
    drop(held);
    let error = store.shutdown(LIMIT).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert!(
        error.is_unavailable() && error.to_string().contains("3 releases"),
        "{error}"
    );
    proxy.heal();
    store.shutdown(SOON).await.unwrap();
    assert_eq!(left(&server, "k"), [""; 0]);
}
