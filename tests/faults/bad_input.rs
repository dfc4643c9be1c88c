//! What is not allowed is told clearly, and as early as it can be.

use std::time::Duration;

use tower_distributed::{Quota, Quotas, Store, TokenBucket};

use crate::leases::bad_settings::is_told;
use support::redis_server::RedisServer;

#[test]
fn settings_are_checked_when_a_store_is_built() {
    let (builder, ms) = (Store::builder, Duration::from_millis);
    for (builder, named) in [
        (
            builder().tcp_keepalive(ms(999)),
            "tcp_keepalive must be 1 s to 1 hour, is 999ms",
        ),
        (
            builder().tcp_keepalive(ms(1500)),
            "tcp_keepalive must be whole seconds, is 1.5s",
        ),
        (
            builder().tcp_user_timeout(Duration::MAX),
            "tcp_user_timeout must be 1 s to 1 hour",
        ),
        (builder().connections(0), "0"),
    ] {
        is_told(builder.redis("redis://127.0.0.1/"), &[named]);
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named_as_the_cause() {
    let bucket = TokenBucket::new(
        &Store::redis("redis://127.0.0.1:1").unwrap(),
        "x",
        Quota::per_hour(1),
    )
    .unwrap();
    let error = bucket.allow("k").await.unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("refused"),
        "{error}"
    );
    for _ in 0..4 {
        let error = bucket.allow("k").await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_timeout(), "{error}");
    }
    let nowhere = Store::redis("redis://no-such-host.invalid").unwrap();
    let bucket = TokenBucket::new(&nowhere, "x", Quota::per_hour(1)).unwrap();
    assert!(bucket.allow("k").await.unwrap_err().is_unavailable());
}

/// A key that holds something else is left as it is, and those that were asked for with it get their answer.
#[tokio::test]
async fn a_key_of_another_type_admits_nobody_and_is_left_alone() {
    let server = RedisServer::start().await;
    let bucket = TokenBucket::new(
        &Store::redis(&server.url()).unwrap(),
        "typed",
        Quota::per_hour(1).burst(5),
    )
    .unwrap();
    server.cli(&["RPUSH", "td:{typed:list}:tat", "a"]);
    server.cli(&["SET", "td:{typed:text}:tat", "hello"]);
    for (at, foreign) in [
        "12 x",
        "1e300",
        "nan",
        "inf",
        "-5",
        "1.5 2",
        "1 2 3",
        "0 99999999999999999 0 0 0",
        "",
        // A part of a µs that is a whole one, and what is less than nothing.
        "0 1795819802396183 3 9 2 4 3 5",
        "0 1795819802396183 2 9 3 4 3 5",
        "-1 9 0 9 0 3600000000 1 5",
        "0 -1 0 9 0 3600000000 1 5",
        "0 1795819802396183 0 -1 0 3600000000 1 5",
        "0 1795819802396183 0 9 -1 3600000000 1 5",
    ]
    .into_iter()
    .enumerate()
    {
        server.cli(&["SET", &format!("td:{{typed:{at}}}:tat"), foreign]);
        assert!(
            bucket.allow(at.to_string()).await.is_err(),
            "{foreign:?} was taken for a bucket"
        );
        assert!(
            bucket.peek(at.to_string()).await.is_err(),
            "{foreign:?} was taken for a bucket"
        );
    }
    let calls = ["a", "list", "b", "text", "list", "c"].map(|key| bucket.allow(key));
    let [a, list, b, text, again, c] = futures::future::join_all(calls).await.try_into().unwrap();
    for other in [a, b, c] {
        assert_eq!(other.unwrap().remaining(), 4);
    }
    for wrong in [list, text, again] {
        let error = wrong.unwrap_err();
        assert!(error.is_wrong_type() && error.is_unavailable(), "{error}");
    }
    let peeks = ["a", "list", "untouched", "text"].map(|key| bucket.peek(key));
    let [a, list, untouched, text] = futures::future::join_all(peeks).await.try_into().unwrap();
    assert_eq!(
        (a.unwrap().remaining(), untouched.unwrap().remaining()),
        (4, 5)
    );
    let second = Duration::from_secs(1);
    let blocks = ["e", "list", "f", "text"].map(|key| bucket.block_for(key, second));
    let [e, blocked_list, f, blocked_text] =
        futures::future::join_all(blocks).await.try_into().unwrap();
    assert!(e.is_ok() && f.is_ok());
    let errors = [
        list.unwrap_err(),
        text.unwrap_err(),
        blocked_list.unwrap_err(),
        blocked_text.unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_wrong_type(), "{error}");
    }
    assert_eq!(
        server
            .cli(&["LRANGE", "td:{typed:list}:tat", "0", "-1"])
            .trim(),
        "a"
    );
    assert_eq!(server.cli(&["GET", "td:{typed:text}:tat"]).trim(), "hello");
    // A number that Redis cannot add to.
    let quick = Quotas::try_from(Quota::per_second(1_000_000)).unwrap();
    server.cli(&["SET", "td:{typed:fraction}:tat", "2000000000000000.5"]);
    let quick = bucket.with_quotas(&quick);
    let calls = ["g", "fraction", "h"].map(|key| quick.reserve(key));
    let [g, fraction, h] = futures::future::join_all(calls).await.try_into().unwrap();
    assert!(g.is_ok() && h.is_ok());
    assert!(fraction.unwrap_err().is_wrong_type());
    assert_eq!(
        server.cli(&["GET", "td:{typed:fraction}:tat"]).trim(),
        "2000000000000000.5"
    );
    // It is not taken for an outage: others go on.
    assert!(bucket.allow("d").await.unwrap().is_admitted());
}

#[cfg(feature = "sentinel")]
#[test]
fn sentinels_with_different_settings_are_refused() {
    let store = |urls: [&str; 2]| Store::builder().sentinel(urls, "mymaster");
    let plain = "redis://10.0.0.1:26379";
    for (second, told) in [
        ("redis://10.0.0.2:26379/1", "database"),
        ("redis://app:secret@10.0.0.2:26379", "user"),
        ("redis://:secret@10.0.0.2:26379", "password"),
    ] {
        for urls in [[plain, second], [second, plain]] {
            is_told(
                store(urls),
                &["Sentinel", told, "10.0.0.1:26379", "10.0.0.2:26379"],
            );
            let text = store(urls).unwrap_err().to_string();
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(store([second, &second.replace("10.0.0.2", "10.0.0.3")]).is_ok());
    }
    let other = [
        "redis://:secret@10.0.0.1:26379",
        "redis://:sacred@10.0.0.2:26379",
    ];
    is_told(store(other), &["password", "10.0.0.2:26379"]);
    assert!(!store(other).unwrap_err().to_string().contains("s@"));
}
