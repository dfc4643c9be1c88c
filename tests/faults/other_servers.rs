//! Servers, proxies and services that refuse a part of what a Redis server does. The page `guide::servers` lists what
//! happens; its rows name these tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tower_distributed::dedupe::{Claimed, Dedupe};
use tower_distributed::single_flight::Json;
use tower_distributed::{
    Credentials, Error, Mutex, Quota, SingleFlight, Store, StoreFailure, TokenBucket, WaitGroup,
};

use crate::leases::kinds::{Family, LONG};
use support::eventually;
use support::program::since_7_0;
use support::proxy::{FaultProxy, Refusal};
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);

/// What administrates a server, and the commands that a subset of Redis lacks most often.
const NOT_NEEDED: [&str; 24] = [
    "ACL", "BGSAVE", "BLPOP", "CLIENT", "COMMAND", "CONFIG", "DBSIZE", "DEBUG", "EVAL_RO",
    "FLUSHALL", "FLUSHDB", "FUNCTION", "HELLO", "KEYS", "LATENCY", "MEMORY", "MONITOR", "MULTI",
    "OBJECT", "PUBSUB", "ROLE", "SCAN", "SCRIPT", "SLOWLOG",
];

fn store(url: &str) -> Store {
    Store::builder()
        .timeout(Duration::from_secs(10))
        .redis(url)
        .unwrap()
}

/// Commands that Redis has from 7.0 on.
const NEW: [&str; 4] = ["EVAL_RO", "FCALL", "FUNCTION", "SPUBLISH"];

/// A server whose commands have other names.
pub(crate) async fn renamed(commands: &[&str]) -> RedisServer {
    let is_there = |name: &&&str| since_7_0() || !NEW.contains(name);
    let commands = commands.iter().filter(is_there);
    let arguments: Vec<_> = commands
        .flat_map(|name| ["--rename-command", name, ""])
        .collect();
    RedisServer::with_args(&arguments).await
}

/// A store by the URL, and another process.
pub(crate) fn two(url: &str) -> [Store; 2] {
    [store(url), store(url)]
}

/// Uses the main primitives as two processes do: with a waiter of one for what the other holds. `server` has the state.
pub(crate) async fn all_work([one, other]: &[Store; 2], server: &RedisServer) {
    let bucket = |store| TokenBucket::new(store, "x", Quota::per_hour(2)).unwrap();
    for (store, is_admitted) in [(one, true), (other, true), (one, false)] {
        assert_eq!(
            bucket(store).allow("k").await.unwrap().is_admitted(),
            is_admitted
        );
    }

    for (near, far) in Family::each(one, LONG)
        .into_iter()
        .zip(Family::each(other, LONG))
    {
        let taken = near.take("k").await.unwrap();
        assert!(far.try_take("k").await.unwrap_err().is_refused());
        let waiter = tokio::spawn(async move { far.take("k").await });
        near.wait_for(server, "k", 1).await;
        let fence = taken.handle().fence();
        assert!(taken.release().await.unwrap());
        let next = tokio::time::timeout(SOON, waiter).await;
        let next = next
            .unwrap_or_else(|_| panic!("no {} was handed on", near.name()))
            .unwrap()
            .unwrap();
        assert!(fence.is_none() || next.handle().fence() > fence);
        assert!(next.release().await.unwrap());
    }

    let flights = |store| {
        SingleFlight::<u32>::builder(Json)
            .ttl(SOON)
            .build(store, "x")
            .unwrap()
    };
    let (leads, ends) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let leader = tokio::spawn({
        let (flights, leads, ends) = (flights(one), Arc::clone(&leads), Arc::clone(&ends));
        async move {
            let run = move || async move {
                leads.notify_one();
                ends.notified().await;
                7
            };
            flights.run("k", run).await
        }
    });
    leads.notified().await;
    let following = flights(other);
    let follower = tokio::spawn(async move { following.run("k", || async { 9 }).await });
    let is_behind = async || server.query(&["ZCARD", "td:{x:k}:flight:waiters"]) == Ok(1);
    eventually("the follower", SOON, is_behind).await;
    ends.notify_one();
    for answer in [leader, follower] {
        assert_eq!(
            tokio::time::timeout(SOON, answer)
                .await
                .expect("the answer")
                .unwrap()
                .unwrap(),
            7
        );
    }

    let dedupe = |store| {
        Dedupe::exact(store, "x")
            .remember_for(SOON)
            .build()
            .unwrap()
    };
    let Claimed::New(claim) = dedupe(one).try_claim("k").await.unwrap() else {
        panic!("it is new")
    };
    assert!(dedupe(other).try_claim("k").await.unwrap_err().is_refused());
    assert!(claim.confirm().await.unwrap());
    assert!(matches!(
        dedupe(other).try_claim("k").await.unwrap(),
        Claimed::Duplicate
    ));
}

/// Calls each primitive. Every call fails at once with an error that names the remedy: none is admitted or waits.
async fn all_fail(store: &Store, remedy: &str) {
    let checked = |call: &str, error: Option<Error>| {
        let error = error.unwrap_or_else(|| panic!("{call} succeeded, without {remedy}"));
        let text = error.to_string();
        assert!(
            error.is_unavailable() && !error.is_refused() && text.contains(remedy),
            "{call}: {text}"
        );
        assert!(!text.contains(":k}"), "{call}: {text}");
    };
    let calls = async {
        let bucket = TokenBucket::new(store, "x", Quota::per_hour(2)).unwrap();
        checked("allow", bucket.allow("k").await.err());
        for family in Family::each(store, LONG) {
            checked(family.name(), family.take("k").await.err());
            checked(family.name(), family.try_take("k").await.err());
        }
        let flights = SingleFlight::<u32>::builder(Json).on_store_failure(StoreFailure::FailClosed);
        let flights = flights.build(store, "x").unwrap();
        checked("run", flights.run("k", || async { 7 }).await.err());
        let dedupe = Dedupe::exact(store, "x")
            .remember_for(SOON)
            .build()
            .unwrap();
        checked("claim", dedupe.try_claim("k").await.err());
    };
    tokio::time::timeout(SOON, calls)
        .await
        .expect("a call waits for what is not to be had");
}

#[tokio::test]
async fn commands_of_administration_are_not_needed() {
    let server = renamed(&NOT_NEEDED).await;
    all_work(&two(&server.url()), &server).await;
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_version_is_accepted() {
    let server = RedisServer::start().await;
    let stores = two(&format!("redis://app:secret@127.0.0.1:{}", server.port()));
    server.set_user(
        &stores[0].acl_rule("app").unwrap(),
        &["on", ">secret", "-info", "-ping"],
    );
    all_work(&stores, &server).await;
    assert_eq!(stores[0].stats().server_version, None);
    for refusal in [
        Refusal::Error("ERR unknown command 'info'"),
        Refusal::Error("unsupported command 'info'"),
    ] {
        server.cli(&["FLUSHALL"]);
        let proxy = FaultProxy::before(&[server.port()])
            .await
            .refusing(&["INFO", "CLIENT", "PING"], refusal);
        all_work(&two(&proxy.url()), &server).await;
    }
}

#[tokio::test]
async fn without_pub_sub_waiters_poll() {
    let subscriptions = ["SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"];
    let server = RedisServer::start().await;
    for refusal in [
        Refusal::Error("unsupported command 'subscribe'"),
        Refusal::Close,
        Refusal::Silence,
    ] {
        server.cli(&["FLUSHALL"]);
        let proxy = FaultProxy::before(&[server.port()])
            .await
            .refusing(&subscriptions, refusal);
        all_work(&two(&proxy.url()), &server).await;
    }
    let server = renamed(&["SUBSCRIBE", "PUBLISH", "SPUBLISH"]).await;
    all_work(&two(&server.url()), &server).await;
}

/// As behind a proxy that subscribes at another server than that of the keys.
#[tokio::test]
async fn messages_that_never_arrive_are_made_up_for() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::before(&[server.port()])
        .await
        .without_messages();
    all_work(&two(&proxy.url()), &server).await;
}

/// The words of services and proxies are tested in `store::redis::failure::denied`.
#[tokio::test]
async fn a_service_without_scripts_is_named() {
    const REMEDY: &str = "renamed, disabled or missing";
    for commands in [&["EVALSHA", "FCALL"], &["EVAL", "FCALL"]] {
        let server = renamed(commands).await;
        all_fail(&store(&server.url()), REMEDY).await;
    }
    let server = RedisServer::start().await;
    for (text, remedy) in [
        ("unsupported command 'evalsha'", REMEDY),
        (
            "ERR script tried accessing undeclared key",
            "check of scripts off",
        ),
    ] {
        let proxy = FaultProxy::before(&[server.port()]).await;
        let proxy = proxy.refusing(&["EVAL", "EVALSHA", "FCALL"], Refusal::Error(text));
        all_fail(&store(&proxy.url()), remedy).await;
        let mutex = Mutex::builder()
            .tries(1000)
            .build(&store(&proxy.url()), "x")
            .unwrap();
        let locked = tokio::time::timeout(SOON, mutex.lock("k")).await;
        assert!(
            locked
                .expect("it tries again what is denied")
                .unwrap_err()
                .is_unavailable(),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_read_replica_is_named() {
    let server = RedisServer::start().await;
    let replica = replica_of(&server).await;
    all_fail(&store(&replica.url()), "connect to the primary").await;
}

/// A load balancer gives each connection another server.
#[tokio::test]
async fn replicas_behind_one_address_admit_nobody() {
    let server = RedisServer::start().await;
    let replica = replica_of(&server).await;
    let proxy = FaultProxy::before(&[replica.port(), server.port()]).await;
    let stores = two(&proxy.url());
    let bucket = |store| TokenBucket::new(store, "x", Quota::per_hour(5)).unwrap();
    let mutex = |store| Mutex::new(store, "x").unwrap();
    let (mut admitted, mut held, began) = (0, None, Instant::now());
    while began.elapsed() < SOON && (admitted < 5 || held.is_none()) {
        for store in &stores {
            match bucket(store).allow("k").await {
                Ok(decision) => admitted += u32::from(decision.is_admitted()),
                Err(error) => assert!(
                    error.to_string().contains("connect to the primary"),
                    "{error}"
                ),
            }
            match mutex(store).try_lock("k").await {
                Ok(guard) => assert!(held.replace(guard).is_none(), "two hold it"),
                Err(error) => assert!(
                    held.is_some() && error.is_refused()
                        || error.to_string().contains("connect to the primary"),
                    "{error}"
                ),
            }
        }
    }
    assert!(
        admitted == 5 && held.is_some(),
        "{admitted}: it stays at the replica"
    );
    assert!(
        proxy.accepted().len() >= 4,
        "each store has left the replica"
    );
}

async fn replica_of(primary: &RedisServer) -> RedisServer {
    let replica = RedisServer::start().await;
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    eventually("the replica to be in step", SOON, async || {
        replica
            .cli(&["INFO", "replication"])
            .contains("master_link_status:up")
    })
    .await;
    replica
}

#[tokio::test]
async fn another_database_needs_select() {
    let server = renamed(&["SELECT"]).await;
    all_work(&two(&server.url()), &server).await;
    all_fail(
        &store(&format!("{}/3", server.url())),
        "leave the database out of the URL",
    )
    .await;
}

#[tokio::test]
async fn a_proxy_that_closes_connections_is_named() {
    let server = RedisServer::start().await;
    for command in ["CLIENT", "INFO"] {
        let proxy = FaultProxy::before(&[server.port()])
            .await
            .refusing(&[command], Refusal::Close);
        let store = Store::redis(&proxy.url()).unwrap();
        let error = TokenBucket::new(&store, "x", Quota::per_hour(2))
            .unwrap()
            .allow("k")
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(
            error.is_unavailable() && text.contains("a proxy must answer"),
            "{command}: {text}"
        );
    }
}

#[tokio::test]
async fn both_protocols_work() {
    let server = RedisServer::start().await;
    all_work(&two(&format!("{}/?protocol=resp3", server.url())), &server).await;
    let old = renamed(&["HELLO"]).await;
    all_work(&two(&old.url()), &old).await;
    all_fail(
        &store(&format!("{}/?protocol=resp3", old.url())),
        "leave `protocol` out of the URL",
    )
    .await;
}

/// The server repeats the arguments of a command that it does not know.
#[tokio::test]
async fn a_password_is_not_repeated() {
    let server = renamed(&["HELLO"]).await;
    server.cli(&[
        "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all",
    ]);
    let store = store(&format!(
        "redis://app:secret@127.0.0.1:{}/?protocol=resp3",
        server.port()
    ));
    let error = store.ping().await.unwrap_err();
    let mut shown = format!("{error} {error:?}");
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        shown += &format!(" {error} {error:?}");
        source = error.source();
    }
    assert!(
        shown.contains("HELLO") && !shown.contains("secret"),
        "{shown}"
    );
}

/// A user without a command that only one primitive needs.
#[tokio::test]
async fn a_missing_command_concerns_only_what_needs_it() {
    let server = RedisServer::start().await;
    let store = Store::builder()
        .credentials(Credentials::new("app", "secret"))
        .redis(&server.url())
        .unwrap();
    server.set_user(
        &store.acl_rule("app").unwrap(),
        &["on", ">secret", "-hexists", "-zadd"],
    );
    let bucket = TokenBucket::new(&store, "x", Quota::per_hour(2)).unwrap();
    assert!(bucket.allow("k").await.unwrap().is_admitted());
    assert!(Mutex::new(&store, "x").unwrap().try_lock("k").await.is_ok());
    let error = WaitGroup::new(&store, "x", 1)
        .unwrap()
        .add("k")
        .await
        .unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("acl_rule"),
        "{error}"
    );
    assert!(
        bucket.allow("k").await.unwrap().is_admitted(),
        "the breaker is closed"
    );
}
