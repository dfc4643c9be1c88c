//! A guard that is forgotten is not renewed for ever, if a longest hold is set.

use std::time::Duration;

use tokio::time::Instant;
use tokio_test::{assert_pending, task};
use tower_distributed::dedupe::Claimed;
use tower_distributed::{Dedupe, Mutex, RwLock, Store, WaitGroup};

use crate::leases::kinds::Family;

/// It is kept until then, and lost then.
#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_after_the_longest_hold() {
    const HOUR: Duration = Duration::from_secs(3600);
    let store = &Store::in_memory();
    for family in [
        Family::Permits(
            WaitGroup::builder(1)
                .max_hold(HOUR)
                .build(store, "permits")
                .unwrap(),
        ),
        Family::Mutex(
            Mutex::builder()
                .max_hold(HOUR)
                .build(store, "mutex")
                .unwrap(),
        ),
        Family::Writers(RwLock::builder().max_hold(HOUR).build(store, "rw").unwrap()),
    ] {
        let forgotten = family.take("k").await.unwrap();
        let began = Instant::now();
        let mut waiter = task::spawn(family.take("k"));
        assert_pending!(waiter.poll());
        tokio::time::sleep(HOUR - Duration::from_secs(1)).await;
        assert!(forgotten.is_held(), "{}", family.name());
        assert_pending!(waiter.poll());
        forgotten.lost().await;
        assert!(
            !forgotten.is_held() && began.elapsed() < HOUR + Duration::from_secs(1),
            "{}",
            family.name()
        );
        // The next holder has the whole time.
        let next = waiter.await.unwrap();
        tokio::time::sleep(HOUR - Duration::from_secs(2)).await;
        assert!(next.is_held(), "{}", family.name());
        assert!(!forgotten.release().await.unwrap(), "it was lost before");
        assert!(next.release().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_claim_ends() {
    let exact = Dedupe::exact(&Store::in_memory(), "items").remember_for(Duration::from_secs(60));
    let exact = exact
        .ttl(Duration::from_secs(3))
        .max_hold(Duration::from_secs(4))
        .build()
        .unwrap();
    let Claimed::New(forgotten) = exact.try_claim("a").await.unwrap() else {
        panic!("it is new")
    };
    forgotten.lost().await;
    let Claimed::New(next) = exact.try_claim("a").await.unwrap() else {
        panic!("it is free")
    };
    assert!(next.confirm().await.unwrap());
    drop(forgotten);
}
