//! A guard that is forgotten is not renewed for ever, if a longest hold is set.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout};
use tokio_test::{assert_pending, task};
use tower_distributed::dedupe::Claimed;
use tower_distributed::{Dedupe, Mutex, RwLock, Store, WaitGroup};

use crate::kinds::{Family, SOON, open};
use support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(3);
const MAX_HOLD: Duration = Duration::from_secs(4);

fn families(store: &Store, ttl: Duration, max_hold: Duration) -> [Family; 3] {
    let permits = WaitGroup::builder(1).ttl(ttl).max_hold(max_hold).build(store, "permits");
    let mutex = Mutex::builder().ttl(ttl).max_hold(max_hold).build(store, "mutex");
    let writers = RwLock::builder().ttl(ttl).max_hold(max_hold).build(store, "rw");
    [Family::Permits(permits.unwrap()), Family::Mutex(mutex.unwrap()), Family::Writers(writers.unwrap())]
}

/// In virtual time: it is kept until then, and lost then.
#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_after_the_longest_hold() {
    const HOUR: Duration = Duration::from_secs(3600);
    for family in families(&Store::in_memory(), Duration::from_secs(30), HOUR) {
        let forgotten = family.take("k").await.unwrap();
        let began = Instant::now();
        let mut waiter = task::spawn(family.take("k"));
        assert_pending!(waiter.poll());
        tokio::time::sleep(HOUR - Duration::from_secs(1)).await;
        assert!(forgotten.is_held(), "{}", family.name());
        assert_pending!(waiter.poll());
        forgotten.lost().await;
        assert!(!forgotten.is_held() && began.elapsed() < HOUR + Duration::from_secs(1), "{}", family.name());
        // The next holder has the whole time.
        let next = waiter.await.unwrap();
        tokio::time::sleep(HOUR - Duration::from_secs(2)).await;
        assert!(next.is_held(), "{}", family.name());
        assert!(!forgotten.release().await.unwrap(), "it was lost before");
        assert!(next.release().await.unwrap());
    }
}

/// On a server, the next waiter gets the lease long before a ttl has passed.
#[tokio::test]
async fn a_forgotten_guard_stops_nobody() {
    let server = RedisServer::start().await;
    let (store, other) = (open(&server.url()), open(&server.url()));
    let pairs = families(&store, TTL, MAX_HOLD).into_iter().zip(families(&other, TTL, MAX_HOLD));
    join_all(pairs.map(|(family, other)| async move {
        let forgotten = family.take("k").await.unwrap();
        let next = timeout(SOON, other.take("k")).await.expect("a lease").unwrap();
        assert!(!forgotten.is_held(), "{}", family.name());
        std::mem::forget(forgotten);
        assert!(next.release().await.unwrap());
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_claim_ends() {
    let exact = Dedupe::exact(&Store::in_memory(), "items").remember_for(Duration::from_secs(60));
    let exact = exact.ttl(TTL).max_hold(MAX_HOLD).build().unwrap();
    let Claimed::New(forgotten) = exact.try_claim("a").await.unwrap() else { panic!("it is new") };
    forgotten.lost().await;
    let Claimed::New(next) = exact.try_claim("a").await.unwrap() else { panic!("it is free") };
    assert!(next.confirm().await.unwrap());
    drop(forgotten);
}
