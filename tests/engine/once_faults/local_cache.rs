//! Answers that a process keeps for itself: without a call, until they are forgotten or may have been.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_distributed::single_flight::{Postcard, SingleFlightBuilder};
use tower_distributed::{SingleFlight, Store};

use crate::scene::{LONG, SOON, open};
use support::eventually;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;

/// A process, and how often work was done.
struct Process {
    flight: SingleFlight<String>,
    runs: Arc<AtomicU64>,
}

impl Process {
    fn start(server: &RedisServer, local_bytes: u64) -> Self {
        Self::of(
            SingleFlight::builder(Postcard)
                .ttl(LONG)
                .local_cache(local_bytes),
            &open(&server.url()),
        )
    }

    fn of(builder: SingleFlightBuilder<String, Infallible>, store: &Store) -> Self {
        Self {
            flight: builder.build(store, "local").unwrap(),
            runs: Arc::default(),
        }
    }

    /// Whether the answer was there.
    async fn has(&self, key: &str, length: usize) -> bool {
        let before = self.runs.load(Ordering::SeqCst);
        let runs = Arc::clone(&self.runs);
        let work = move || async move {
            runs.fetch_add(1, Ordering::SeqCst);
            "x".repeat(length)
        };
        assert_eq!(self.flight.run(key, work).await.unwrap().len(), length);
        self.runs.load(Ordering::SeqCst) == before
    }

    /// Asks until the answer is kept here: once the process hears what is forgotten.
    async fn keeps(&self, server: &RedisServer, key: &str) {
        eventually("it to be kept", SOON, async || {
            self.has(key, 10).await;
            let before = calls(server);
            self.has(key, 10).await && calls(server) == before
        })
        .await;
    }
}

/// How many functions the server has run.
fn calls(server: &RedisServer) -> u64 {
    server.calls_of("fcall")
}

fn lose_answers(server: &RedisServer) {
    let keys: Vec<String> = server.query(&["KEYS", "*:flight:answer"]).unwrap();
    for key in keys {
        server.query::<u64>(&["DEL", &key]).unwrap();
    }
}

#[tokio::test]
async fn what_is_kept_is_forgotten_everywhere() {
    let server = RedisServer::start().await;
    let (here, there) = (
        Process::start(&server, 1 << 20),
        Process::start(&server, 1 << 20),
    );
    for key in ["k", "l"] {
        here.keeps(&server, key).await;
        there.keeps(&server, key).await;
    }
    assert_eq!(
        there.runs.load(Ordering::SeqCst),
        0,
        "it was read from the store"
    );
    let runs = || here.runs.load(Ordering::SeqCst) + there.runs.load(Ordering::SeqCst);
    let before = runs();
    here.flight.forget("k").await.unwrap();
    assert!(!here.has("k", 10).await, "at once where it was forgotten");
    here.flight.forget("k").await.unwrap();
    eventually("the other to hear of it", SOON, async || {
        !there.has("k", 10).await
    })
    .await;
    assert_eq!(runs(), before + 2);
    lose_answers(&server);
    assert!(
        here.has("l", 10).await && there.has("l", 10).await,
        "another is still there"
    );

    // Something may have been forgotten while nothing was heard.
    assert_eq!(server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]), Ok(2));
    for process in [&here, &there] {
        lose_answers(&server);
        eventually("it to be asked for again", SOON, async || {
            !process.has("l", 10).await
        })
        .await;
        process.keeps(&server, "l").await;
    }
}

#[tokio::test]
async fn no_more_is_kept_than_is_allowed() {
    const ANSWER: usize = 10 * 1024;
    let server = RedisServer::start().await;
    // One makes the answers, the other finds them in the store.
    let processes = ["made", "found"].map(|name| (name, Process::start(&server, 64 * 1024)));
    for (_, process) in &processes {
        process.keeps(&server, "k").await;
    }
    for (name, process) in &processes {
        for number in 0..50 {
            let found = process.has(&number.to_string(), ANSWER).await;
            assert_eq!(found, *name == "found", "{number}");
        }
    }
    lose_answers(&server);
    for (name, process) in &processes {
        let mut kept = 0;
        for number in 0..50 {
            // What is larger than the cache displaces nothing.
            let large = || async { "x".repeat(100 * 1024) };
            kept += usize::from(
                process
                    .flight
                    .run(number.to_string(), large)
                    .await
                    .unwrap()
                    .len()
                    == ANSWER,
            );
        }
        assert!(
            (1..=6).contains(&kept),
            "{kept} of 10 KiB that were {name} are kept in 64 KiB"
        );
    }
    // What is not published is not kept either.
    let builder = SingleFlight::builder(Postcard)
        .ttl(LONG)
        .local_cache(1 << 20)
        .largest_answer(100);
    let here = Process::of(builder, &open(&server.url()));
    here.keeps(&server, "small").await;
    for _ in 0..3 {
        assert!(!here.has("large", 200).await);
    }
}

/// A process near the server keeps nothing. One far away hears all replies and messages when its answers have expired: it serves
/// none once more.
#[tokio::test]
async fn an_answer_that_comes_late_is_not_served_after_its_time() {
    const LIFE: Duration = Duration::from_secs(2);
    const LATE: Duration = Duration::from_millis(2500);
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let builder = || SingleFlight::builder(Postcard).ttl(LIFE);
    let near = Process::of(builder(), &open(&server.url()));
    let far = Process::of(builder().local_cache(1 << 20), &open(&proxy.url()));
    far.keeps(&server, "warm").await;
    let is_asked_for_again = async |key: &str| {
        proxy.delay_replies(Duration::ZERO);
        let before = calls(&server);
        far.has(key, 10).await;
        assert!(calls(&server) > before, "{key} was served after its time");
    };

    let mut key = String::new();
    // On a busy machine an answer may have expired before it is asked for.
    eventually("it to be asked for in time", 3 * SOON, async || {
        key.push('k');
        near.has(&key, 10).await;
        proxy.delay_replies(LATE);
        let is_read = far.has(&key, 10).await;
        proxy.delay_replies(Duration::ZERO);
        is_read
    })
    .await;
    is_asked_for_again(&key).await;

    let (done, wait) = tokio::sync::oneshot::channel::<()>();
    let work = || async {
        wait.await.unwrap();
        "x".repeat(10)
    };
    let leader = tokio::spawn(async move { near.flight.run("pushed", work).await });
    let keys = |part| {
        server
            .query::<Vec<String>>(&["KEYS", &format!("*:pushed}}:flight:{part}")])
            .unwrap()
            .len()
    };
    eventually("a leader", SOON, async || keys("lock") == 1).await;
    proxy.delay_replies(LATE);
    let publish = async {
        eventually("a follower", SOON, async || keys("waiters") == 1).await;
        done.send(()).unwrap();
    };
    let (heard, ()) = tokio::join!(far.has("pushed", 10), publish);
    assert!(heard && leader.await.unwrap().is_ok());
    is_asked_for_again("pushed").await;
}
