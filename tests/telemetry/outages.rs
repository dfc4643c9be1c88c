//! An outage is told from its beginning to its end, and counted.

use tower_distributed::{Quota, Store, TokenBucket, WaitGroup};

use crate::seen::{assert_no_secrets, events, listen, touched, value};
use crate::{KEY, PASSWORD, SOON};
use support::redis_server::RedisServer;
use support::{eventually, patient};

fn add_user(server: &RedisServer) {
    server.cli(&[
        "ACL",
        "SETUSER",
        "user",
        "on",
        &format!(">{PASSWORD}"),
        "~*",
        "&*",
        "+@all",
    ]);
}

/// The series of an event, by the server that it is told of.
fn counted(server: &str, event: &str) -> f64 {
    value(
        "tower_distributed_events_total",
        &[("server", server), ("event", event)],
    )
}

fn told(server: &str, event: &str) -> Vec<crate::seen::Event> {
    events(&[("server", server), ("event", event)])
}

#[tokio::test]
async fn an_outage_is_told_from_its_beginning_to_its_end_and_counted() {
    listen();
    let server = RedisServer::start().await;
    add_user(&server);
    let address = format!("127.0.0.1:{}", server.port());
    let store = patient!(format!("redis://user:{PASSWORD}@{address}"));
    let bucket = TokenBucket::new(&store, "outage", Quota::per_second(1_000_000)).unwrap();
    let group = WaitGroup::new(&store, "outage", 1).unwrap();
    let permit = group.add(KEY).await.unwrap();
    let waiter = tokio::spawn({
        let group = group.clone();
        async move { group.add(KEY).await.map(drop) }
    });
    assert!(bucket.allow(KEY).await.unwrap().is_admitted());
    eventually("the subscription", SOON, async || {
        server.cli(&["PUBSUB", "CHANNELS"]).contains("wake")
    })
    .await;
    // The store is to have read that it is subscribed, too.
    for _ in 0..200 {
        assert!(bucket.allow(KEY).await.unwrap().is_admitted());
    }
    for event in [
        "outage_began",
        "breaker_opened",
        "reconnected",
        "subscription_lost",
        "subscription_back",
    ] {
        assert!(told(&address, event).is_empty(), "{event}");
    }
    assert!(
        touched(
            "tower_distributed_call_seconds",
            &[("server", &address), ("result", "ok")]
        ) > 0
    );
    assert!(
        value(
            "tower_distributed_batch_operations",
            &[("server", &address)]
        ) > 0.0
    );
    assert!(
        touched(
            "tower_distributed_queue_operations",
            &[("server", &address)]
        ) > 0
    );

    server.kill9();
    let open = || value("tower_distributed_breakers_open", &[("server", &address)]);
    let asked = async || drop(bucket.allow(KEY).await.unwrap_err());
    for event in [
        "outage_began",
        "breaker_opened",
        "breaker_half_open",
        "subscription_lost",
    ] {
        let what = format!("{event} of {address}");
        eventually(&what, SOON, async || {
            asked().await;
            !told(&address, event).is_empty()
        })
        .await;
    }
    assert!(open() >= 1.0);
    assert!(
        touched(
            "tower_distributed_call_seconds",
            &[("server", &address), ("result", "error")]
        ) > 0
    );

    server.restart().await;
    add_user(&server);
    eventually("recovery", SOON, async || bucket.allow(KEY).await.is_ok()).await;
    for event in [
        "breaker_closed",
        "reconnected",
        "subscription_back",
        "outage_ended",
    ] {
        let what = format!("{event} of {address}");
        eventually(&what, SOON, async || {
            // Also the other connections of the store.
            drop(group.count(KEY).await);
            !told(&address, event).is_empty()
        })
        .await;
    }
    eventually("no breaker is open", SOON, async || open() == 0.0).await;
    // The server has forgotten what was held.
    waiter.abort();
    drop(permit);

    let levels = [
        ("outage_began", "WARN"),
        ("outage_ended", "INFO"),
        ("breaker_opened", "DEBUG"),
        ("breaker_half_open", "DEBUG"),
        ("breaker_closed", "DEBUG"),
        ("reconnected", "INFO"),
        ("subscription_lost", "WARN"),
        ("subscription_back", "INFO"),
    ];
    for (event, level) in levels {
        // Another connection of the store may be back between the two looks.
        eventually(
            &format!("as many of {event} to be counted as told"),
            SOON,
            async || counted(&address, event) == told(&address, event).len() as f64,
        )
        .await;
        let told = told(&address, event);
        assert!(told.iter().all(|told| told["level"] == level), "{told:?}");
    }
    let (began, ended) = (
        told(&address, "outage_began"),
        told(&address, "outage_ended"),
    );
    assert_eq!((began.len(), ended.len()), (1, 1), "{began:?} {ended:?}");
    let cause = &began[0]["message"];
    assert!(
        cause.starts_with("the store is unavailable: ") && cause.len() > 30,
        "{cause}"
    );
    let seconds: f64 = ended[0]["seconds"].parse().unwrap();
    assert!(seconds > 0.0, "{seconds}");
    eventually(
        "as many reconnects to be counted as told",
        SOON,
        async || {
            let reconnects = value(
                "tower_distributed_reconnects_total",
                &[("server", &address)],
            );
            reconnects == told(&address, "reconnected").len() as f64
        },
    )
    .await;
    assert_no_secrets();
}

/// Waiters poll, and the reason is told once, however often it is tried again.
#[tokio::test]
async fn a_subscription_that_is_denied_is_told_once() {
    listen();
    let server = RedisServer::start().await;
    server.cli(&["ACL", "SETUSER", "default", "resetchannels"]);
    let address = format!("127.0.0.1:{}", server.port());
    let store = patient!(server.url());
    let group = WaitGroup::new(&store, "denied", 1).unwrap();
    let permit = group.add(KEY).await.unwrap();
    let waiter = tokio::spawn({
        let group = group.clone();
        async move { group.add(KEY).await.map(drop) }
    });
    eventually("it to be told", SOON, async || {
        !told(&address, "subscription_lost").is_empty()
    })
    .await;
    let denied = || {
        server
            .cli(&["INFO", "commandstats"])
            .lines()
            .find(|line| line.contains("subscribe"))
            .map(str::to_owned)
    };
    let first = denied();
    eventually("it to be tried again", SOON, async || denied() != first).await;
    assert!(permit.done().await.unwrap());
    waiter.await.unwrap().unwrap();
    let told = told(&address, "subscription_lost");
    assert_eq!(told.len(), 1, "{told:?}");
    let message = &told[0]["message"];
    assert!(
        message.starts_with("no subscription, so waiters poll the store: NOPERM"),
        "{message}"
    );
    assert_no_secrets();
}

/// Each of several runtimes has breakers of its own, and an outage is one.
#[test]
fn runtimes_that_end_in_an_outage_do_not_end_it() {
    listen();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let server = runtime().block_on(RedisServer::start());
    let address = format!("127.0.0.1:{}", server.port());
    let store = patient!(server.url());
    let bucket = TokenBucket::new(&store, "runtimes", Quota::per_second(1_000_000)).unwrap();
    server.kill9();
    for _ in 0..3 {
        assert!(runtime().block_on(bucket.allow(KEY)).is_err());
    }
    assert_eq!(told(&address, "outage_began").len(), 1);
    assert!(told(&address, "outage_ended").is_empty());
    assert_eq!(
        value("tower_distributed_breakers_open", &[("server", &address)]),
        0.0,
        "their runtimes ended"
    );

    runtime().block_on(server.restart());
    assert!(runtime().block_on(bucket.allow(KEY)).is_ok());
    assert_eq!(told(&address, "outage_ended").len(), 1);
    assert_no_secrets();
}
