//! What counts as an outage, for whom, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tower::{Service, ServiceExt, service_fn};
use tower_distributed::{Mutex, RateLimitLayer, Store, StoreFailure, TokenBucket};
use tower_layer::Layer;

use crate::scene::{CALL, MACHINE, RECOVERY, is_served, wide_bucket};
use support::eventually;
use support::redis_server::RedisServer;

const CALLERS: usize = 256;
const KILLS: usize = 6;
const SECOND: Duration = Duration::from_secs(1);

/// Callers that call again as soon as they are answered.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    callers: Vec<tokio::task::JoinHandle<Vec<Instant>>>,
}

impl Load {
    fn start(bucket: &TokenBucket) -> Self {
        let (stop, answered) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let callers = (0..CALLERS).map(|caller| {
            let (bucket, stop, answered) = (bucket.clone(), stop.clone(), answered.clone());
            tokio::spawn(async move {
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match bucket.allow(caller.to_string()).await {
                        Ok(decision) => {
                            assert!(decision.is_admitted(), "an outage was told as a refusal");
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            assert!(error.is_unavailable(), "{error}");
                            failures.push(Instant::now());
                            tokio::task::yield_now().await;
                        }
                    }
                }
                failures
            })
        });
        let callers = callers.collect();
        Self { stop, answered, callers }
    }

    async fn more(&self, answers: u64) {
        let wanted = self.answered.load(Ordering::Relaxed) + answers;
        eventually("answers", RECOVERY, async || self.answered.load(Ordering::Relaxed) >= wanted).await;
    }

    /// When calls failed.
    async fn end(self) -> Vec<Instant> {
        self.stop.store(true, Ordering::Relaxed);
        join_all(self.callers).await.into_iter().flat_map(Result::unwrap).collect()
    }
}

/// Defect 4: up to 3 086 calls failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_killed_connection_fails_only_the_calls_in_flight() {
    let server = RedisServer::start().await;
    let _turn = MACHINE.write().await;
    let load = Load::start(&wide_bucket(&Store::redis(&server.url()).unwrap()));
    let mut killed = Vec::new();
    for _ in 0..KILLS {
        load.more(5_000).await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        killed.push(Instant::now());
        // More failures may follow for as long as a breaker is open.
        tokio::time::sleep(SECOND / 5).await;
    }
    // After the last kill a whole second is looked at, and as many calls.
    let last = killed[KILLS - 1];
    eventually("the second to pass", RECOVERY, async || last.elapsed() > SECOND + SECOND / 4).await;
    load.more(5_000).await;
    let failures = load.end().await;
    let late = failures.iter().filter(|failed| failed.duration_since(last) > SECOND).count();
    assert_eq!(late, 0, "of {} failures so many came more than a second after the kill", failures.len());
    let failed_after = |kill: usize| {
        let next = killed.get(kill + 1);
        failures
            .iter()
            .filter(|&failed| *failed >= killed[kill] && next.is_none_or(|next| failed < next))
            .count()
    };
    let failed: Vec<_> = (0..KILLS).map(failed_after).collect();
    let most = failed.iter().max().unwrap();
    assert!(
        *most <= 2 * CALLERS,
        "{CALLERS} calls were in flight, after each kill so many failed: {failed:?}"
    );
}

/// One kill, and only then a call: it is sent again or fails, and the next one is served.
#[tokio::test]
async fn one_killed_connection_fails_one_call_at_most() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let bucket = wide_bucket(&Store::redis(&server.url()).unwrap());
    for round in 0..20 {
        assert!(is_served(&bucket.allow("k").await), "round {round}");
        server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let _ = bucket.allow("k").await;
    }
}

/// A store that logs in as a user with these ACL rules.
async fn limited(server: &RedisServer, rules: &[&str]) -> Store {
    let user = ["ACL", "SETUSER", "limited", "reset", "on", ">secret", "&*", "+@all"];
    server.cli(&[&user[..], rules].concat());
    Store::redis(&format!("redis://limited:secret@127.0.0.1:{}", server.port())).unwrap()
}

/// Defect 4: an error of one script or key is no outage.
#[tokio::test]
async fn noperm_for_a_key_does_not_open_the_breaker() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let store = limited(&server, &["~td:{wide:*"]).await;
    let denied = TokenBucket::new(&store, "denied", tower_distributed::Quota::per_hour(1)).unwrap();
    let allowed = wide_bucket(&store);
    assert!(is_served(&allowed.allow("k").await));
    for _ in 0..10 {
        for key in 0..5 {
            assert!(denied.allow(key).await.is_err());
        }
        let outcome = allowed.allow("k").await;
        assert!(is_served(&outcome), "{outcome:?}");
    }
}

/// The same for a command that only some scripts use.
#[tokio::test]
async fn noperm_for_a_command_does_not_open_the_breaker() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let store = limited(&server, &["~*", "-incrby", "-incr", "-zadd", "-zcard", "-exists", "-pttl"]).await;
    let (mutex, bucket) = (Mutex::new(&store, "denied").unwrap(), wide_bucket(&store));
    assert!(is_served(&bucket.allow("k").await));
    for _ in 0..10 {
        for key in 0..5 {
            let lock = mutex.try_lock(key).await;
            assert!(lock.is_err(), "locks need none of the commands: take another one");
        }
        let outcome = bucket.allow("k").await;
        assert!(is_served(&outcome), "{outcome:?}");
    }
}

/// A server that stands still is an outage for 256 concurrent callers: fail open admits all of them within the bounds
/// of one call, and later ones at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_server_reaches_fail_open() {
    let _turn = MACHINE.read().await;
    let server = RedisServer::start().await;
    let bucket = wide_bucket(&Store::redis(&server.url()).unwrap());
    assert!(is_served(&bucket.allow("warm").await));
    let layer = RateLimitLayer::new(bucket, |key: &usize| *key as u64);
    let layer = layer.on_store_failure(StoreFailure::FailOpen);
    let service = layer.layer(service_fn(async |_: usize| Ok::<_, std::io::Error>(())));
    server.pause();
    let crowd = || {
        let calls = (0..CALLERS).map(|key| {
            let mut service = service.clone();
            async move { service.ready().await.unwrap().call(key).await.unwrap() }
        });
        tokio::time::timeout(CALL, join_all(calls))
    };
    crowd().await.expect("fail open is not reached");
    eventually("requests to pass without a wait", CALL, async || {
        let began = Instant::now();
        crowd().await.expect("fail open is not reached");
        began.elapsed() < Duration::from_millis(100)
    })
    .await;
    server.resume();
}
