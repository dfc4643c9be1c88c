//! A server over `maxmemory`, with `noeviction`, for longer than a ttl: what frees or only prolongs works, and nothing is
//! lost.

use std::time::Duration;

use futures::future::join_all;
use tokio::select;
use tower_distributed::dedupe::Claimed;
use tower_distributed::{Dedupe, Mutex, Quota, RwLock, Store, TokenBucket, WaitGroup};

use crate::leases::kinds::{Family, SOON, Taken, open};
use support::eventually;
use support::redis_server::RedisServer;

/// On a busy machine a renewal may be a second late.
const TTL: Duration = Duration::from_secs(3);

fn set_maxmemory(server: &RedisServer, bytes: &str) {
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", bytes]), "OK");
}

/// One lease of each kind: also a permit of weight 3, a reader, and a mutex with a value.
async fn one_of_each(store: &Store, ttl: Duration) -> Vec<Taken> {
    let mut leases = Vec::new();
    for family in Family::each(store, ttl) {
        leases.push(family.take("k").await.unwrap());
    }
    let permits = WaitGroup::builder(5)
        .ttl(ttl)
        .build(store, "heavy")
        .unwrap();
    leases.push(Taken::Permit(permits.add_n("k", 3).await.unwrap()));
    let readers = RwLock::builder().ttl(ttl).build(store, "readers").unwrap();
    leases.push(Taken::Reader(readers.read("k").await.unwrap()));
    let valued = Mutex::builder()
        .ttl(ttl)
        .value_with(|| "mine".to_owned())
        .build(store, "valued")
        .unwrap();
    leases.push(Taken::Mutex(valued.lock("k").await.unwrap()));
    leases
}

/// Waits until all were renewed for longer than their ttl.
async fn are_kept(leases: &[Taken], ttl: Duration) {
    let kept = leases.iter().map(|lease| async move {
        let first = lease.until();
        select! {
            () = lease.lost() => panic!("{} was lost", lease.token()),
            () = eventually("renewals", SOON, async || lease.until() > first + ttl) => {}
        }
    });
    join_all(kept).await;
}

async fn are_released(leases: Vec<Taken>) {
    for lease in leases {
        let token = lease.token().to_owned();
        assert!(
            lease
                .release()
                .await
                .unwrap_or_else(|error| panic!("{token}: {error}")),
            "{token}"
        );
    }
}

async fn nothing_is_taken(store: &Store) {
    for family in Family::each(store, TTL) {
        let taken = family.try_take("another").await.unwrap_err();
        assert!(taken.is_unavailable(), "what takes does not work: {taken}");
    }
}

/// What shows that a replica has a call is a write as well.
#[tokio::test]
async fn leases_that_replicas_must_have_are_renewed_and_released() {
    let (server, replica) = (RedisServer::start().await, RedisServer::start().await);
    assert_eq!(
        replica.cli(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]),
        "OK"
    );
    let builder = Store::builder()
        .timeout(Duration::from_secs(2))
        .replicas(1, Duration::from_secs(1));
    let store = builder.redis(&server.url()).unwrap();
    let mutex = Mutex::new(&store, "first").unwrap();
    eventually("the replica to be in step", SOON, async || {
        mutex.try_lock("k").await.is_ok()
    })
    .await;
    // A replica that is slow once is waited for until the next renewal.
    let ttl = 2 * TTL;
    let (last, leases) = (
        mutex.lock("last").await.unwrap(),
        one_of_each(&store, ttl).await,
    );
    set_maxmemory(&server, "1");
    are_kept(&leases, ttl).await;
    nothing_is_taken(&store).await;
    are_released(leases).await;
    replica.pause();
    let missing = last.unlock().await.unwrap_err();
    assert!(missing.to_string().contains("0 of 1 replicas"), "{missing}");
    replica.resume();
}

/// The same of items, and of tokens that are held; and waiters are served.
#[tokio::test]
async fn leases_are_renewed_and_released_and_handed_on() {
    let server = RedisServer::start().await;
    let (store, other) = (open(&server.url()), open(&server.url()));
    let exact = Dedupe::exact(&store, "items")
        .ttl(TTL)
        .remember_for(60 * TTL)
        .build()
        .unwrap();
    let claim = async |item: &str| match exact.try_claim(item).await.unwrap() {
        Claimed::New(claim) => claim,
        known => panic!("{known:?}"),
    };
    let claims = (claim("confirmed").await, claim("released").await);
    let buckets = [
        ("daily", Quota::per_day(1000)),
        ("credits", Quota::non_refilling(1000)),
    ];
    let buckets = buckets.map(|(name, quota)| {
        TokenBucket::new(&store, name, quota)
            .unwrap()
            .with_hold_ttl(TTL)
            .unwrap()
    });
    let mut holds = Vec::new();
    for bucket in &buckets {
        let (one, other) = (
            bucket.authorize("k", 300).await,
            bucket.authorize("k", 200).await,
        );
        holds.push((bucket, one.unwrap(), other.unwrap()));
    }
    let leases = one_of_each(&store, TTL).await;
    let take = |family: Family| async move { family.take("k").await.unwrap() };
    let waiters = Family::each(&other, TTL).map(|family| tokio::spawn(take(family)));
    for family in Family::each(&store, TTL) {
        family.wait_for(&server, "k", 1).await;
    }

    set_maxmemory(&server, "1");
    are_kept(&leases, TTL).await;
    nothing_is_taken(&store).await;
    are_released(leases).await;
    let handed_on = join_all(waiters)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect::<Vec<_>>();
    are_kept(&handed_on, TTL).await;
    assert!(
        claims.0.confirm().await.unwrap() && claims.1.release().await.unwrap(),
        "they were held"
    );
    assert!(exact.forget("confirmed").await.unwrap(), "it was stored");
    for (bucket, one, other) in holds {
        assert!(one.is_held() && other.is_held());
        assert!(
            bucket
                .authorize("new", 1)
                .await
                .unwrap_err()
                .is_unavailable()
        );
        assert!(other.release().await.unwrap());
        assert!(!one.capture(50).await.unwrap().ended);
        let state = bucket.peek("k").await.unwrap();
        assert_eq!(
            (state.held(), state.remaining()),
            (0, 950),
            "{}",
            bucket.name()
        );
    }
    set_maxmemory(&server, "0");
    are_released(handed_on).await;
    drop((claim("confirmed").await, claim("released").await));
}
