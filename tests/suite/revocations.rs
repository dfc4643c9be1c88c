//! Revoked leases: they are lost, and the next waiter has them.

use std::time::Duration;

use tower_distributed::lease::Holder;
use tower_distributed::operator::{Entry, Kind};
use tower_distributed::{Lease, Mutex, Store, WaitGroup};

use crate::fleet::elsewhere;
use crate::kinds::{Family, each};
use crate::operators::leases;
use crate::stores::{Place, SOON, with_servers};
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
        let next = place.line_up(&here.state(), 1, async move { there.take("k").await.unwrap() }).await;
        let seen = leases(&operator, &entry).await;
        assert_eq!(seen.waiting, 1);
        assert!(operator.revoke(&entry, &seen.holders[0]).await.unwrap());
        let next = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
        assert!(!operator.revoke(&entry, &seen.holders[0]).await.unwrap(), "another holds it now");
        assert!(next.is_held() && (kind == Kind::WaitGroup || next.fence() > stuck.fence()));
        assert!(stuck.extend().await.unwrap_err().is_lost() && !stuck.is_held());
        assert!(next.release().await.unwrap() && !stuck.release().await.unwrap());
    }
    let mutex = Mutex::new(place, name).unwrap();
    let held = mutex.lock("k").await.unwrap();
    let bucket = Entry::new(Kind::TokenBucket, name, "k").unwrap();
    let holder = &mutex.inspect("k").await.unwrap().holders[0];
    assert!(operator.revoke(&bucket, holder).await.unwrap_err().is_invalid());
    assert!(mutex.revoke("k", holder).await.unwrap() && !mutex.revoke("k", holder).await.unwrap());
    assert!(Lease::from(held).release_checked().await.unwrap_err().is_lost());
}

/// The ttl is 30 s, so the next renewal is 10 s away.
pub(crate) async fn a_revoked_lease_is_lost_at_once(place: &Place, name: &str) {
    const AT_ONCE: Duration = Duration::from_secs(6);
    // Without messages it is lost at the next renewal.
    if place.prefix == "polling" {
        return;
    }
    let (mutex, permits) = (Mutex::new(place, name).unwrap(), WaitGroup::new(place, name, 3).unwrap());
    let unrenewed = Mutex::builder().watchdog(false).build(place, name).unwrap();
    // The first one is taken before this process is subscribed.
    for round in 0..3 {
        let (stuck, permit) = (mutex.try_lock("k").await.unwrap(), permits.add("k").await.unwrap());
        let (other, kept) = (unrenewed.try_lock("l").await.unwrap(), permits.add("k").await.unwrap());
        let handle = permit.handle();
        let lost = async move { tokio::join!(stuck.lost(), handle.lost(), other.lost()) };
        let lost = tokio::spawn(async move { tokio::time::timeout(AT_ONCE, lost).await });
        for (kind, key, token) in
            [(Kind::Mutex, "k", None), (Kind::Mutex, "l", None), (Kind::WaitGroup, "k", Some(permit.token()))]
        {
            let entry = Entry::new(kind, name, key).unwrap();
            let seen = leases(&place.operator(), &entry).await;
            let is_it = |holder: &&Holder| token.is_none_or(|token| holder.token() == token);
            let holder = seen.holders.iter().find(is_it).unwrap();
            assert!(place.operator().revoke(&entry, holder).await.unwrap());
        }
        let lost = lost.await.unwrap();
        assert!(lost.is_ok(), "not lost within {AT_ONCE:?} in round {round}");
        assert!(kept.is_held() && kept.done().await.unwrap(), "of another holder");
    }
}

/// A message that says so ends no lease that is held.
#[tokio::test]
async fn a_forged_message_ends_no_lease() {
    for place in with_servers().await {
        let name = "forged";
        let mutex = Mutex::builder().build(&place, name).unwrap();
        let (held, revoked) = (mutex.lock("held").await.unwrap(), mutex.lock("revoked").await.unwrap());
        let (process, rest) = held.token().split_once('-').unwrap();
        let id = rest.split('.').next().unwrap();
        let channel = format!("{}:wake:{process}", place.prefix);
        let forge = async || {
            let message = format!("0 0 {id}");
            let servers = place.servers();
            servers
                .iter()
                .map(|server| server.query::<u32>(&["PUBLISH", &channel, &message]).unwrap())
                .sum::<u32>()
        };
        let lost = tokio::spawn(revoked.lost());
        eventually("the process is subscribed", SOON, async || forge().await > 0).await;
        for _ in 0..20 {
            forge().await;
        }
        // The messages of one server arrive in their order.
        let seen = mutex.inspect("revoked").await.unwrap();
        assert!(mutex.revoke("revoked", &seen.holders[0]).await.unwrap());
        tokio::time::timeout(SOON, lost).await.unwrap().unwrap();
        assert!(held.is_held());
        held.extend().await.unwrap();
        assert!(held.unlock().await.unwrap());
    }
}

/// The ids of waiters are those of their process: a grant for a waiter of one process is for no waiter of another.
#[tokio::test]
async fn a_permit_that_another_process_releases_goes_to_its_waiter() {
    for place in with_servers().await {
        let (name, other_place) = ("released_elsewhere", place.again());
        let [here, there] = [&*place, &other_place].map(|store| WaitGroup::new(store, name, 1).unwrap());
        let id = here.add("k").await.unwrap().into_id();
        let other = there.add("other").await.unwrap();
        let next = {
            let here = here.clone();
            tokio::spawn(async move { here.add("k").await.unwrap() })
        };
        let mut beside = {
            let there = there.clone();
            tokio::spawn(async move { there.add("other").await.unwrap() })
        };
        for key in ["k", "other"] {
            place.lined_up(&format!("{name}:{key}"), 1).await;
        }
        assert!(there.done(&id).await.unwrap());
        let next = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
        assert!(next.is_held() && other.is_held() && !beside.is_finished(), "two hold one permit");
        assert!(other.done().await.unwrap());
        assert!((&mut beside).await.unwrap().is_held());
    }
}

/// The lock of a mutex with values expires, and another library locks: it has no fence of the holder before it.
#[tokio::test]
async fn the_lock_of_another_library_has_no_fence_of_an_expired_one() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let builder = Mutex::builder().value_with(|| "host-7:ä".to_owned());
    let mutex = builder.ttl(Duration::from_millis(500)).watchdog(false).build(&store, "jobs").unwrap();
    let lock = mutex.lock("k").await.unwrap();
    let holder = |seen: tower_distributed::lease::Snapshot| {
        (seen.holders[0].token().to_owned(), seen.holders[0].fence)
    };
    assert_eq!(holder(mutex.inspect("k").await.unwrap()), ("host-7:ä".to_owned(), Some(lock.fence())));
    eventually("the end of the lock", SOON, async || !mutex.is_locked("k").await.unwrap()).await;
    assert_eq!(server.cli(&["SET", "td:{jobs:k}:lock", "theirs", "NX", "PX", "60000"]), "OK");
    let seen = mutex.inspect("k").await.unwrap();
    assert_eq!(holder(seen.clone()), ("theirs".to_owned(), None));
    assert!(!lock.unlock().await.unwrap());
    assert!(mutex.revoke("k", &seen.holders[0]).await.unwrap());
    assert_eq!(server.cli(&["EXISTS", "td:{jobs:k}:lock"]), "0");
}
