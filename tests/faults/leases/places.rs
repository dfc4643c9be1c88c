//! Places in the queue: each name has its own; and how long a wait for one may be.

use std::time::Duration;

use tokio::time::timeout;
use tower_distributed::{Mutex, Store, WaitGroup};

use crate::leases::kinds::{Family, LONG, SOON, open};
use support::eventually;
use support::redis_server::RedisServer;

/// Names that differ by a hash tag alone share neither a queue nor anything else.
#[tokio::test]
async fn a_name_in_braces_has_a_queue_of_its_own() {
    let server = RedisServer::start().await;
    let builder = Mutex::builder().exact_names().strict_fifo().ttl(LONG);
    let locks = || {
        builder
            .clone()
            .build(&open(&server.url()), "locks")
            .unwrap()
    };
    let (near, far) = (locks(), locks());
    let plain = near.lock("a").await.unwrap();
    let braced = near.lock("{a}").await.unwrap();
    let waiter = tokio::spawn(async move { far.lock("{a}").await.unwrap() });
    let beats = || {
        server
            .query::<Vec<String>>(&["KEYS", "*beats"])
            .unwrap()
            .len()
    };
    eventually("it to wait", SOON, async || beats() == 1).await;
    assert!(plain.unlock().await.unwrap());
    assert_eq!(
        server.cli(&["EXISTS", "a"]),
        "0",
        "a lock was granted to who waits for another"
    );
    assert!(braced.is_held() && braced.unlock().await.unwrap());
    assert!(
        timeout(SOON, waiter)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap()
    );
}

/// All keys but the one of the holders are gone, as where a server evicts keys. The permits are still held.
#[tokio::test]
async fn weights_count_though_their_sum_was_evicted() {
    let server = RedisServer::start().await;
    let group = WaitGroup::new(&open(&server.url()), "g", 10).unwrap();
    let nine = group.add_n("k", 9).await.unwrap();
    let keys: Vec<String> = server.query(&["KEYS", "td:{g:k}:*"]).unwrap();
    for key in keys.iter().filter(|key| !key.ends_with(":holders")) {
        assert_eq!(server.cli(&["DEL", key]), "1");
    }
    assert!(
        group.try_add_n("k", 9).await.unwrap_err().is_refused(),
        "18 of 10 are out"
    );
    assert_eq!(group.count("k").await.unwrap(), 9);
    let one = group.try_add("k").await.unwrap();
    assert!(nine.done().await.unwrap());
    assert_eq!(group.count("k").await.unwrap(), 1);
    assert!(one.done().await.unwrap());
}

/// Who is refused is told when it is worth trying again: as long as others held of late, rather than the time to live.
#[tokio::test]
async fn a_refusal_tells_for_how_long_others_held() {
    const WORK: Duration = Duration::from_millis(30);
    let server = RedisServer::start().await;
    let stores = [open(&server.url()), Store::in_memory()];
    for family in stores.iter().flat_map(|store| Family::each(store, LONG)) {
        let held = family.take("k").await.unwrap();
        let told = family.try_take("k").await.unwrap_err().retry_after();
        let known = told.is_some_and(|told| told > LONG / 2);
        assert_eq!(
            known,
            !matches!(family, Family::Permits(_)),
            "{told:?} is known of nothing"
        );
        tokio::time::sleep(WORK).await;
        assert!(held.release().await.unwrap());
        let held = family.take("k").await.unwrap();
        let told = family
            .try_take("k")
            .await
            .unwrap_err()
            .retry_after()
            .unwrap();
        assert!(
            WORK <= told && told < LONG / 2,
            "{told:?} after others held for {WORK:?}"
        );
        assert!(held.release().await.unwrap());
    }
}
