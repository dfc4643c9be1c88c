//! Leases are counted while they are held, when they are renewed and when they are lost.

use std::time::Duration;

use tower_distributed::{Mutex, Store};

use crate::seen::{assert_no_secrets, events, listen, value};
use crate::{KEY, SOON};
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

fn counted(what: &str, namespace: &str) -> f64 {
    value(
        &format!("tower_distributed_leases_{what}"),
        &[("kind", "mutex"), ("namespace", namespace)],
    )
}

#[tokio::test]
async fn leases_are_counted_while_held_and_when_renewed_and_lost() {
    listen();
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    let ttl = Duration::from_secs(3);
    let mutex = Mutex::builder().ttl(ttl).build(&store, "watched").unwrap();
    let guard = mutex.lock(KEY).await.unwrap();
    assert_eq!(counted("held", "watched"), 1.0);
    eventually("a renewal", SOON, async || {
        counted("renewed_total", "watched") > 0.0
    })
    .await;
    assert_eq!(counted("lost_total", "watched"), 0.0);

    server.cli(&["DEL", &format!("td:{{watched:{KEY}}}:lock")]);
    guard.lost().await;
    eventually("the loss", SOON, async || {
        counted("lost_total", "watched") == 1.0
    })
    .await;
    assert_eq!(counted("held", "watched"), 1.0, "it is not dropped yet");
    assert!(!guard.unlock().await.unwrap());
    assert_eq!(
        (counted("held", "watched"), counted("lost_total", "watched")),
        (0.0, 1.0),
        "lost once"
    );
    // Losses of one second are told together.
    let told = events(&[("event", "lease_lost")]);
    assert!(
        told.iter()
            .all(|event| event["count"].parse::<u64>().unwrap() > 0
                && !event["namespace"].is_empty())
            && !told.is_empty(),
        "{told:?}"
    );

    let guard = mutex.lock(KEY).await.unwrap();
    assert!(guard.unlock().await.unwrap());
    assert_eq!(
        (counted("held", "watched"), counted("lost_total", "watched")),
        (0.0, 1.0)
    );
    assert_no_secrets();
}

#[tokio::test]
async fn a_lease_that_nobody_renews_is_counted_as_lost_when_it_is_dropped() {
    listen();
    let server = RedisServer::start().await;
    for store in [Store::in_memory(), patient!(server.url())] {
        let before = counted("lost_total", "unwatched");
        let builder = Mutex::builder()
            .ttl(Duration::from_millis(50))
            .watchdog(false);
        let mutex = builder.build(&store, "unwatched").unwrap();
        let guard = mutex.lock(KEY).await.unwrap();
        guard.lost().await;
        drop(guard);
        assert_eq!(counted("lost_total", "unwatched"), before + 1.0);
        assert_eq!(counted("held", "unwatched"), 0.0);
    }
    assert_no_secrets();
}
