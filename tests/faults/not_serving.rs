//! A server that is there and cannot serve: never told as a refusal, and over when it is over.

use std::time::Duration;

use deadpool_redis::redis::cmd;
use tower_distributed::{Error, Mutex, Quota, Store, TokenBucket};

use support::eventually;
use support::redis_server::RedisServer;

const SOON: Duration = Duration::from_secs(20);

/// Meets an outage whose text names `code`, and its end.
async fn outage(server: &RedisServer, code: &str, begin: impl AsyncFn(), end: impl AsyncFn()) {
    let store = Store::redis(&server.url()).unwrap();
    let bucket = TokenBucket::new(&store, "serving", Quota::per_hour(1).burst(1)).unwrap();
    let allow = async || -> Result<bool, Error> { Ok(bucket.allow("k").await?.is_admitted()) };
    bucket.allow("warm").await.unwrap();
    assert!(bucket.allow("reserved").await.unwrap().is_admitted());
    let mut reservation = bucket.reserve("reserved").await.unwrap();
    begin().await;
    let blocked = bucket.block_for("k", Duration::from_secs(9)).await;
    assert!(
        blocked.as_ref().is_err_and(Error::is_unavailable),
        "an outage was told as {blocked:?}"
    );
    let cancelled = reservation.cancel().await;
    // As a replica of an empty master the server has no such bucket, so there is nothing to write. What gives back works out
    // of memory.
    let is_done = matches!(code, "READONLY" | "OOM") && cancelled.is_ok();
    assert!(
        is_done || cancelled.as_ref().is_err_and(Error::is_unavailable),
        "an outage was told as {cancelled:?}"
    );
    let error = allow().await.unwrap_err();
    assert!(error.is_unavailable() && !error.is_refused(), "{error}");
    assert!(error.to_string().contains(code), "{error}");
    end().await;
    eventually("the end of the outage", SOON, async || {
        matches!(allow().await, Ok(true))
    })
    .await;
    assert!(!allow().await.unwrap());
}

#[tokio::test]
async fn out_of_memory() {
    let server = RedisServer::start().await;
    let memory = async |limit: &str| drop(server.cli(&["CONFIG", "SET", "maxmemory", limit]));
    outage(
        &server,
        "OOM",
        async || memory("1").await,
        async || memory("0").await,
    )
    .await;
}

#[tokio::test]
async fn read_only() {
    let server = RedisServer::start().await;
    let master = RedisServer::start().await;
    let follow = async |host: &str, port: &str| drop(server.cli(&["REPLICAOF", host, port]));
    let port = master.port().to_string();
    let become_replica = async || {
        follow("127.0.0.1", &port).await;
        eventually("the replica to be in step", SOON, async || {
            server
                .cli(&["INFO", "replication"])
                .contains("master_link_status:up")
        })
        .await;
    };
    outage(&server, "READONLY", become_replica, async || {
        follow("NO", "ONE").await
    })
    .await;
}

#[tokio::test]
async fn too_few_replicas() {
    let server = RedisServer::start().await;
    let replicas =
        async |least: &str| drop(server.cli(&["CONFIG", "SET", "min-replicas-to-write", least]));
    outage(
        &server,
        "NOREPLICAS",
        async || replicas("1").await,
        async || replicas("0").await,
    )
    .await;
}

#[tokio::test]
async fn busy_with_a_script() {
    // Since 7.0 it is another name of busy-reply-threshold.
    let server = RedisServer::with_args(&["--lua-time-limit", "10"]).await;
    let spin = async || {
        let mut client = server.client().unwrap();
        std::thread::spawn(move || {
            let spin = "while true do end";
            let _ = client.query::<()>(cmd("EVAL").arg(spin).arg(0));
        });
        eventually("the server to be busy", SOON, async || {
            server
                .query::<String>(&["PING"])
                .is_err_and(|error| error.to_string().contains("BUSY"))
        })
        .await;
    };
    outage(&server, "BUSY", spin, async || {
        drop(server.cli(&["SCRIPT", "KILL"]))
    })
    .await;
}

#[tokio::test]
async fn without_a_password_or_with_another() {
    let server = RedisServer::start().await;
    server.cli(&["CONFIG", "SET", "requirepass", "secret"]);
    let store = Store::redis(&server.url()).unwrap();
    let bucket = TokenBucket::new(&store, "auth", Quota::per_hour(1)).unwrap();
    let error = bucket.allow("k").await.unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("NOAUTH"),
        "{error}"
    );
    // A long command gets another answer.
    let error = Mutex::new(&store, "auth")
        .unwrap()
        .try_lock("k")
        .await
        .unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("unauthenticated"),
        "{error}"
    );

    let with = |password: &str| {
        let url = format!("redis://:{password}@127.0.0.1:{}", server.port());
        TokenBucket::new(&Store::redis(&url).unwrap(), "auth", Quota::per_hour(1)).unwrap()
    };
    let error = with("wrong").allow("k").await.unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("authentication failed"),
        "{error}"
    );
    assert!(with("secret").allow("k").await.unwrap().is_admitted());
}

#[tokio::test]
async fn with_too_many_clients() {
    let server = RedisServer::start().await;
    let mut only = server.client().unwrap();
    only.query::<String>(cmd("CONFIG").arg("SET").arg("maxclients").arg(1))
        .unwrap();
    let bucket = TokenBucket::new(
        &Store::redis(&server.url()).unwrap(),
        "full",
        Quota::per_hour(1),
    )
    .unwrap();
    let error = bucket.allow("k").await.unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("`maxclients`"),
        "{error:?}"
    );
    only.query::<String>(cmd("CONFIG").arg("SET").arg("maxclients").arg(100))
        .unwrap();
}
