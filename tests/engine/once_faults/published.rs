//! Answers on their way to the store: when their replies are lost, and when the store is slow.

use std::sync::Arc;

use futures::future::join_all;
use tokio::sync::{Barrier, oneshot};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{SingleFlight, Store};

use crate::scene::{LONG, SOON, open};
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use support::{eventually, patient};

fn keys(server: &RedisServer, part: &str) -> usize {
    server
        .query::<Vec<String>>(&["KEYS", &format!("td:*:flight:{part}")])
        .unwrap()
        .len()
}

/// Waits until there is a connection and the scripts are known. Leaves no answer.
async fn warm(server: &RedisServer, flight: &SingleFlight<String>) {
    eventually("an answer", SOON, async || {
        flight
            .run("warm", || async { String::new() })
            .await
            .unwrap();
        keys(server, "answer") == 1
    })
    .await;
    flight.forget("warm").await.unwrap();
}

async fn is_over(server: &RedisServer) {
    eventually("the flights to be over", SOON, async || {
        keys(server, "lock") == 0
    })
    .await;
}

/// The connection was idle during the run, and breaks once the server has stored the answer.
#[tokio::test]
async fn an_answer_that_was_published_twice_counts() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    // Room for one of the answers.
    let flight = SingleFlight::<String>::builder(Postcard)
        .ttl(LONG)
        .largest_answer(1000)
        .max_stored(2024);
    let flight = flight.build(&open(&proxy.url()), "f").unwrap();
    warm(&server, &flight).await;
    is_over(&server).await;
    let (done, wait) = oneshot::channel::<()>();
    let first = flight.run("first", || async {
        wait.await.unwrap();
        "x".repeat(900)
    });
    let publish = async {
        eventually("the flight", SOON, async || keys(&server, "lock") == 1).await;
        eventually("the connections to be idle", SOON, async || {
            server.has_idle_callers()
        })
        .await;
        proxy.drop_next_reply_after(b"xxxxx");
        done.send(()).unwrap();
    };
    let (answer, ()) = tokio::join!(first, publish);
    assert_eq!(answer.unwrap().len(), 900);
    eventually("the reply to be lost", SOON, async || {
        proxy.replies_dropped() == 1
    })
    .await;
    is_over(&server).await;
    assert_eq!(keys(&server, "answer"), 1);
    for number in 0..20 {
        let other = flight
            .run(format!("other {number}"), || async { "y".repeat(900) })
            .await
            .unwrap();
        assert_eq!(other.len(), 900);
        is_over(&server).await;
        assert_eq!(keys(&server, "answer"), 1, "more is stored than max_stored");
    }
}

/// What a slow server has not taken yet counts as waiting. Answers above the bound are not published. Their callers have
/// them all the same, and the next callers run.
#[tokio::test]
async fn answers_on_their_way_to_a_slow_server_are_bounded() {
    const ANSWER: usize = 256 << 10;
    const RUNS: usize = 200;
    /// What may be in flight beside what waits.
    const UNDER_WAY: usize = 3 * 16 + 1;
    let server = Arc::new(RedisServer::start().await);
    let store = patient!()
        .max_queued_bytes(16 * ANSWER)
        .redis(&server.url())
        .unwrap();
    let flight = SingleFlight::<String>::builder(Postcard)
        .ttl(LONG)
        .largest_answer(2 * ANSWER);
    let flight = flight.max_stored(u64::MAX).build(&store, "f").unwrap();
    warm(&server, &flight).await;
    // The server stands still once all run.
    let all_run = Arc::new(Barrier::new(RUNS));
    let run = async |number: usize| {
        let (all_run, server) = (Arc::clone(&all_run), Arc::clone(&server));
        let work = move || async move {
            if all_run.wait().await.is_leader() {
                server.pause();
            }
            all_run.wait().await;
            "x".repeat(ANSWER)
        };
        flight.run(number.to_string(), work).await.unwrap().len()
    };
    let runs = (0..RUNS).map(run);
    assert!(
        join_all(runs)
            .await
            .into_iter()
            .all(|length| length == ANSWER)
    );
    server.resume();
    is_over(&server).await;
    let published = keys(&server, "answer");
    assert!(
        (1..=16 + UNDER_WAY).contains(&published),
        "{published} of {RUNS} were published"
    );
    let again = flight
        .run("next", || async { "x".repeat(ANSWER) })
        .await
        .unwrap();
    assert_eq!(again.len(), ANSWER);
    eventually("the next answer to be published", SOON, async || {
        keys(&server, "answer") == published + 1
    })
    .await;
}
