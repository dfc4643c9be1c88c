//! Revoked leases: they are lost, and the next waiter has them.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;
use tower_distributed::operator::{Entry, Kind};
use tower_distributed::{Lease, Mutex, Store, WaitGroup};

use crate::fleet::elsewhere;
use crate::kinds::{Family, each};
use crate::operators::leases;
use crate::stores::{Place, SOON};
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

/// The waiter is of another process, where there is one. The ttl is 30 s: only the revocation ends the wait.
pub(crate) async fn what_is_revoked_goes_to_the_next_waiter(place: &Place, name: &str) {
    let (operator, other) = (place.operator(), elsewhere(place));
    for (here, there) in each!(place, name).into_iter().zip(each!(&other, name)) {
        let kind = match here {
            Family::Permits(_) => Kind::WaitGroup,
            Family::Mutex(_) => Kind::Mutex,
            Family::Writers(_) => Kind::RwLock,
        };
        if place.servers().is_empty() && kind != Kind::WaitGroup {
            continue;
        }
        let entry = Entry::new(kind, here.name(), "k").unwrap();
        let stuck = here.take("k").await.unwrap();
        let next = place
            .line_up(
                &here.state(),
                1,
                async move { there.take("k").await.unwrap() },
            )
            .await;
        let seen = leases(&operator, &entry).await;
        assert_eq!(seen.waiting, 1);
        assert!(operator.revoke(&entry, &seen.holders[0]).await.unwrap());
        let next = timeout(SOON, next).await.unwrap().unwrap();
        assert!(
            !operator.revoke(&entry, &seen.holders[0]).await.unwrap(),
            "another holds it now"
        );
        assert!(next.is_held() && (kind == Kind::WaitGroup || next.fence() > stuck.fence()));
        assert!(stuck.extend().await.unwrap_err().is_lost() && !stuck.is_held());
        assert!(next.release().await.unwrap() && !stuck.release().await.unwrap());
    }
    let mutex = Mutex::new(place, name).unwrap();
    let held = mutex.lock("k").await.unwrap();
    let bucket = Entry::new(Kind::TokenBucket, name, "k").unwrap();
    let holder = &mutex.inspect("k").await.unwrap().holders[0];
    assert!(
        operator
            .revoke(&bucket, holder)
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert!(mutex.revoke("k", holder).await.unwrap() && !mutex.revoke("k", holder).await.unwrap());
    assert!(
        Lease::from(held)
            .release_checked()
            .await
            .unwrap_err()
            .is_lost()
    );
}

/// The next renewal is further away than anything is waited for.
pub(crate) async fn a_revoked_lease_is_lost_at_once(place: &Place, name: &str) {
    // Without messages it is lost at the next renewal.
    if place.prefix == "polling" {
        return;
    }
    let mutex = Mutex::builder().ttl(30 * SOON).build(place, name).unwrap();
    let permits = WaitGroup::builder(3)
        .ttl(30 * SOON)
        .build(place, name)
        .unwrap();
    let unrenewed = Mutex::builder()
        .ttl(30 * SOON)
        .watchdog(false)
        .build(place, name)
        .unwrap();
    // The first one is taken before this process is subscribed.
    for round in 0..3 {
        let (stuck, other) = (
            mutex.try_lock("k").await.unwrap(),
            unrenewed.try_lock("l").await.unwrap(),
        );
        let (permit, kept) = (
            permits.add("k").await.unwrap(),
            permits.add("k").await.unwrap(),
        );
        let lost = join_all([stuck.lost(), other.lost(), permit.lost()]);
        let lost = tokio::spawn(timeout(SOON, lost));
        for (mutex, key) in [(&mutex, "k"), (&unrenewed, "l")] {
            let holder = &mutex.inspect(key).await.unwrap().holders[0];
            assert!(mutex.revoke(key, holder).await.unwrap());
        }
        let seen = permits.inspect("k").await.unwrap();
        let holder = seen
            .holders
            .iter()
            .find(|holder| holder.token() == permit.token())
            .unwrap();
        assert!(permits.revoke("k", holder).await.unwrap());
        assert!(
            lost.await.unwrap().is_ok(),
            "not lost at once in round {round}"
        );
        assert!(
            kept.is_held() && kept.done().await.unwrap(),
            "of another holder"
        );
    }
}

/// The ids of waiters are those of their process: a grant for a waiter of one process is for no waiter of another.
pub(crate) async fn a_permit_that_another_process_releases_goes_to_its_waiter(
    place: &Place,
    name: &str,
) {
    let other_place = elsewhere(place);
    let [here, there] =
        [&**place, &other_place].map(|store| WaitGroup::new(store, name, 1).unwrap());
    let id = here.add("k").await.unwrap().into_id();
    let other = there.add("other").await.unwrap();
    let add = |group: &WaitGroup, key: &'static str| {
        let group = group.clone();
        async move { group.add(key).await.unwrap() }
    };
    let next = place
        .line_up(&format!("{name}:k"), 1, add(&here, "k"))
        .await;
    let beside = place
        .line_up(&format!("{name}:other"), 1, add(&there, "other"))
        .await;
    assert!(there.done(&id).await.unwrap());
    let next = timeout(SOON, next).await.unwrap().unwrap();
    assert!(
        next.is_held() && other.is_held() && !beside.is_finished(),
        "two hold one permit"
    );
    assert!(other.done().await.unwrap());
    assert!(beside.await.unwrap().is_held());
}

/// The lock of a mutex with values expires, and another library locks: it has no fence of the holder before it.
#[tokio::test]
async fn the_lock_of_another_library_has_no_fence_of_an_expired_one() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let builder = Mutex::builder().value_with(|| "host-7:ä".to_owned());
    let mutex = builder
        .ttl(Duration::from_millis(500))
        .watchdog(false)
        .build(&store, "jobs")
        .unwrap();
    let lock = mutex.lock("k").await.unwrap();
    let holder = |seen: tower_distributed::lease::Snapshot| {
        (seen.holders[0].token().to_owned(), seen.holders[0].fence)
    };
    assert_eq!(
        holder(mutex.inspect("k").await.unwrap()),
        ("host-7:ä".to_owned(), Some(lock.fence()))
    );
    eventually("the end of the lock", SOON, async || {
        !mutex.is_locked("k").await.unwrap()
    })
    .await;
    assert_eq!(
        server.cli(&["SET", "td:{jobs:k}:lock", "theirs", "NX", "PX", "60000"]),
        "OK"
    );
    let seen = mutex.inspect("k").await.unwrap();
    assert_eq!(holder(seen.clone()), ("theirs".to_owned(), None));
    assert!(!lock.unlock().await.unwrap());
    assert!(mutex.revoke("k", &seen.holders[0]).await.unwrap());
    assert_eq!(server.cli(&["EXISTS", "td:{jobs:k}:lock"]), "0");
}
