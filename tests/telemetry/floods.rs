//! Overload is counted in full and told now and then.

use std::convert::Infallible;

use tower::{Layer, ServiceExt, service_fn};
use tower_distributed::{Quota, RateLimitLayer, Store, StoreFailure, TokenBucket};

use crate::seen::{assert_no_secrets, decisions, events, listen, value};
use crate::{KEY, SOON};
use support::redis_server::RedisServer;
use support::{eventually, patient};

#[tokio::test]
async fn refusals_for_want_of_room_are_all_counted_and_told_together() {
    listen();
    let store = Store::builder().max_keys(1).in_memory().unwrap();
    let bucket = TokenBucket::new(&store, "full", Quota::per_hour(1)).unwrap();
    bucket.allow("first").await.unwrap();
    let layer = RateLimitLayer::new(bucket, |key: &String| key.clone())
        .on_store_failure(StoreFailure::FailOpen);
    let service = layer.layer(service_fn(async |_: String| Ok::<_, Infallible>(())));
    let labels = [("server", "in-memory"), ("event", "overloaded")];
    let told = || events(&[("event", "overloaded"), ("server", "in-memory")]);
    let mut sent = 0;
    // The second event tells of all since the first.
    eventually("an event that tells of several", SOON, async || {
        service
            .clone()
            .oneshot(format!("{KEY}-{sent}"))
            .await
            .unwrap_err();
        sent += 1;
        told()
            .iter()
            .any(|event| event["count"].parse::<u64>().unwrap() > 1)
    })
    .await;
    assert_eq!(
        decisions("token_bucket", "full", "overloaded"),
        f64::from(sent)
    );
    assert_eq!(
        value("tower_distributed_events_total", &labels),
        f64::from(sent)
    );
    let told = told();
    assert!(
        told.iter().all(|event| event["level"] == "WARN"),
        "{told:?}"
    );
    assert_no_secrets();
}

#[tokio::test]
async fn a_full_queue_is_counted() {
    listen();
    let server = RedisServer::start().await;
    let address = format!("127.0.0.1:{}", server.port());
    let store = patient!().max_queued(1).redis(&server.url()).unwrap();
    let bucket = TokenBucket::new(&store, "queued", Quota::per_second(1_000_000)).unwrap();
    bucket.allow(KEY).await.unwrap();
    let calls = (0..100).map(|caller| bucket.allow(format!("{KEY}-{caller}")));
    let outcomes = futures::future::join_all(calls).await;
    let overloaded = outcomes
        .iter()
        .flat_map(|outcome| outcome.as_ref().err())
        .count();
    assert!(overloaded > 0);
    assert_eq!(
        decisions("token_bucket", "queued", "overloaded"),
        overloaded as f64
    );
    let labels = [("server", &*address), ("event", "overloaded")];
    assert_eq!(
        value("tower_distributed_events_total", &labels),
        overloaded as f64
    );
    assert_no_secrets();
}
