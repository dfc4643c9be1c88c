//! A server over `maxmemory`, with `noeviction`, for longer than a ttl: what frees or only prolongs works, and nothing is
//! lost.

use std::time::Duration;

use futures::future::join_all;
use tokio::select;
use tokio_test::{assert_pending, task};
use tower_distributed::dedupe::Claimed;
use tower_distributed::{Dedupe, Mutex, Quota, RwLock, Store, TokenBucket, WaitGroup};

use crate::kinds::{Family, SOON, Taken, open};
use support::eventually;
use support::redis_server::RedisServer;

const TTL: Duration = Duration::from_millis(1500);

fn set_maxmemory(server: &RedisServer, bytes: &str) {
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", bytes]), "OK");
}

/// One lease of each kind: also a permit of weight 3, a reader, and a mutex with a value.
async fn one_of_each(store: &Store) -> Vec<Taken> {
    let mut leases = Vec::new();
    for family in Family::each(store, TTL) {
        leases.push(family.take("k").await.unwrap());
    }
    let permits = WaitGroup::builder(5).ttl(TTL).build(store, "heavy").unwrap();
    leases.push(Taken::Permit(permits.add_n("k", 3).await.unwrap()));
    let readers = RwLock::builder().ttl(TTL).build(store, "readers").unwrap();
    leases.push(Taken::Reader(readers.read("k").await.unwrap()));
    let valued = Mutex::builder().ttl(TTL).value_with(|| "mine".to_owned()).build(store, "valued").unwrap();
    leases.push(Taken::Mutex(valued.lock("k").await.unwrap()));
    leases
}

/// Waits until all were renewed for much longer than their ttl.
async fn are_kept(leases: &[Taken]) {
    let kept = leases.iter().map(|lease| async move {
        let first = lease.until();
        select! {
            () = lease.lost() => panic!("{} was lost", lease.token()),
            () = eventually("renewals", SOON, async || lease.until() > first + 2 * TTL) => {}
        }
    });
    join_all(kept).await;
}

/// What shows that a replica has a call is a write as well.
#[tokio::test]
async fn leases_that_replicas_must_have_are_renewed_and_released() {
    let (server, replica) = (RedisServer::start().await, RedisServer::start().await);
    assert_eq!(replica.cli(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]), "OK");
    let builder = Store::builder().timeout(Duration::from_secs(2)).replicas(1, Duration::from_secs(1));
    let store = builder.redis(&server.url()).unwrap();
    let mutex = Mutex::new(&store, "first").unwrap();
    eventually("the replica to be in step", SOON, async || mutex.try_lock("k").await.is_ok()).await;
    let (last, leases) = (mutex.lock("last").await.unwrap(), one_of_each(&store).await);
    set_maxmemory(&server, "1");
    are_kept(&leases).await;
    assert!(mutex.try_lock("another").await.unwrap_err().is_unavailable());
    for lease in leases {
        let token = lease.token().to_owned();
        assert!(lease.release().await.unwrap_or_else(|error| panic!("{token}: {error}")), "{token}");
    }
    replica.pause();
    let missing = last.unlock().await.unwrap_err();
    assert!(missing.to_string().contains("0 of 1 replicas"), "{missing}");
    replica.resume();
}

#[tokio::test]
async fn leases_are_renewed_and_released_and_handed_on() {
    let server = RedisServer::start().await;
    let (store, other) = (open(&server.url()), open(&server.url()));
    let leases = one_of_each(&store).await;
    let waiters = Family::each(&other, TTL)
        .map(|family| tokio::spawn(async move { (family.take("k").await.unwrap(), family) }));
    for family in Family::each(&store, TTL) {
        eventually("a waiter", SOON, async || family.waiting(&server, "k") == 1).await;
    }
    set_maxmemory(&server, "1");
    are_kept(&leases).await;
    for family in Family::each(&store, TTL) {
        let taken = family.try_take("another").await.unwrap_err();
        assert!(taken.is_unavailable(), "what takes does not work: {taken}");
    }
    for lease in leases {
        let token = lease.token().to_owned();
        assert!(lease.release().await.unwrap_or_else(|error| panic!("{token}: {error}")), "{token}");
    }
    let mut handed_on = Vec::new();
    for waiter in waiters {
        handed_on.push(waiter.await.unwrap().0);
    }
    are_kept(&handed_on).await;
    set_maxmemory(&server, "0");
    assert!(join_all(handed_on.into_iter().map(Taken::release)).await.into_iter().all(Result::unwrap));
}

/// A fence that a process has used up here is raised in the store by the next renewal.
#[tokio::test]
async fn the_fence_of_a_lock_that_was_handed_on_is_raised() {
    let server = RedisServer::start().await;
    let store = open(&server.url());
    let mutex = Mutex::builder().ttl(TTL).build(&store, "mutex").unwrap();
    let first = mutex.lock("k").await.unwrap();
    let mut next = task::spawn(mutex.lock("k"));
    assert_pending!(next.poll());
    set_maxmemory(&server, "1");
    let fence = Some(first.fence());
    assert!(first.unlock().await.unwrap());
    let next = Taken::Mutex(next.await.unwrap());
    assert!(next.fence() > fence);
    are_kept(std::slice::from_ref(&next)).await;
    assert!(next.release().await.unwrap());
}

#[tokio::test]
async fn claims_are_kept_and_confirmed() {
    let server = RedisServer::start().await;
    let store = open(&server.url());
    let exact = Dedupe::exact(&store, "items").ttl(TTL).remember_for(60 * TTL).build().unwrap();
    let claim = async |item: &str| match exact.try_claim(item).await.unwrap() {
        Claimed::New(claim) => claim,
        known => panic!("{known:?}"),
    };
    let (confirmed, released) = (claim("confirmed").await, claim("released").await);
    set_maxmemory(&server, "1");
    let began = std::time::Instant::now();
    eventually("the ttl to be over twice", SOON, async || began.elapsed() > 2 * TTL).await;
    assert!(confirmed.confirm().await.unwrap(), "it was held");
    assert!(released.release().await.unwrap(), "it was held");
    assert!(exact.forget("confirmed").await.unwrap(), "it was stored");
    set_maxmemory(&server, "0");
    drop((claim("confirmed").await, claim("released").await));
}

#[tokio::test]
async fn holds_are_renewed_captured_and_released() {
    let server = RedisServer::start().await;
    for (name, quota) in [("hourly", Quota::per_hour(1000)), ("credits", Quota::non_refilling(1000))] {
        let bucket = TokenBucket::new(&open(&server.url()), name, quota).unwrap().with_hold_ttl(TTL).unwrap();
        let (one, other) =
            (bucket.authorize("k", 300).await.unwrap(), bucket.authorize("k", 200).await.unwrap());
        set_maxmemory(&server, "1");
        let began = std::time::Instant::now();
        eventually("the ttl to be over twice", SOON, async || {
            assert!(one.is_held() && other.is_held());
            began.elapsed() > 2 * TTL
        })
        .await;
        assert!(bucket.authorize("new", 1).await.unwrap_err().is_unavailable());
        assert!(other.release().await.unwrap());
        let captured = one.capture(50).await.unwrap();
        assert!(!captured.ended);
        let state = bucket.peek("k").await.unwrap();
        assert_eq!((state.held(), state.remaining()), (0, 950), "{name}");
        set_maxmemory(&server, "0");
    }
}
