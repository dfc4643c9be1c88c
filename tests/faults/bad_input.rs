//! What is not allowed is told clearly, and as early as it can be.

use std::time::Duration;

use tower_distributed::{Quota, Store, TokenBucket};

use crate::support::redis_server::RedisServer;

#[test]
fn settings_are_checked_when_a_store_is_built() {
    for (builder, named) in [
        (Store::builder().prefix("a b"), "\"a b\""),
        (Store::builder().prefix("{x}"), "\"{x}\""),
        (Store::builder().timeout(Duration::ZERO), "0ns"),
        (Store::builder().timeout(Duration::MAX), "60 s"),
        (Store::builder().connections(0), "0"),
        (Store::builder().connections(65), "65"),
    ] {
        let error = builder.redis("redis://127.0.0.1/").unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains(named), "{error}");
    }
    for url in ["http://user:secret@127.0.0.1/", "", "127.0.0.1:secret", "redis://127.0.0.1:port/secret"] {
        let error = Store::redis(url).unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains("redis://"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named_as_the_cause() {
    let bucket =
        TokenBucket::new(&Store::redis("redis://127.0.0.1:1").unwrap(), "x", Quota::per_hour(1)).unwrap();
    let error = bucket.allow("k").await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("refused"), "{error}");
    let nowhere = Store::redis("redis://no-such-host.invalid").unwrap();
    let bucket = TokenBucket::new(&nowhere, "x", Quota::per_hour(1)).unwrap();
    assert!(bucket.allow("k").await.unwrap_err().is_unavailable());
}

/// A key that holds something else is left as it is, and those that were asked for with it get their answer.
#[tokio::test]
async fn a_key_of_another_type_admits_nobody_and_is_left_alone() {
    let server = RedisServer::start().await;
    let bucket =
        TokenBucket::new(&Store::redis(&server.url()).unwrap(), "typed", Quota::per_hour(1).burst(5))
            .unwrap();
    server.cli(&["RPUSH", "td:{typed:list}:tat", "a"]);
    server.cli(&["SET", "td:{typed:text}:tat", "hello"]);
    for (at, foreign) in
        ["12 x", "1e300", "nan", "inf", "-5", "1.5 2", "1 2 3", "0 99999999999999999 0 0 0", ""]
            .into_iter()
            .enumerate()
    {
        server.cli(&["SET", &format!("td:{{typed:{at}}}:tat"), foreign]);
        assert!(bucket.allow(at.to_string()).await.is_err(), "{foreign:?} was taken for a bucket");
        assert!(bucket.peek(at.to_string()).await.is_err(), "{foreign:?} was taken for a bucket");
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
    for key in ["list", "text"] {
        assert!(bucket.peek(key).await.is_err());
        assert!(bucket.block_until(key, Duration::from_secs(1)).await.is_err());
    }
    assert_eq!(server.cli(&["LRANGE", "td:{typed:list}:tat", "0", "-1"]).trim(), "a");
    assert_eq!(server.cli(&["GET", "td:{typed:text}:tat"]).trim(), "hello");
    // It is not taken for an outage: others go on.
    assert!(bucket.allow("d").await.unwrap().is_admitted());
}
