//! Overload is counted in full and told now and then.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tower::{Layer, ServiceExt, service_fn};
use tower_distributed::{Quota, RateLimitLayer, Store, StoreFailure, TokenBucket};

use crate::KEY;
use crate::seen::{assert_no_secrets, decisions, events, listen, value};
use support::redis_server::RedisServer;

#[tokio::test]
async fn refusals_for_want_of_room_are_all_counted_and_told_at_most_once_a_second() {
    listen();
    let store = Store::builder().max_keys(1).in_memory().unwrap();
    let bucket = TokenBucket::new(&store, "full", Quota::per_hour(1)).unwrap();
    bucket.allow("first").await.unwrap();
    let layer =
        RateLimitLayer::new(bucket, |key: &String| key.clone()).on_store_failure(StoreFailure::FailOpen);
    let service = layer.layer(service_fn(async |_: String| Ok::<_, Infallible>(())));
    let labels = [("server", "in-memory"), ("event", "overloaded")];
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < Duration::from_millis(1300) {
        for _ in 0..100 {
            service.clone().oneshot(format!("{KEY}-{sent}")).await.unwrap_err();
            sent += 1;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(decisions("token_bucket", "full", "overloaded"), f64::from(sent));
    assert_eq!(value("tower_distributed_events_total", &labels), f64::from(sent));
    let told = events(&[("event", "overloaded")]);
    let most = began.elapsed().as_secs() + 2;
    assert!(!told.is_empty() && told.len() as u64 <= most, "{} events", told.len());
    let ours = events(&[("event", "overloaded"), ("server", "in-memory")]);
    assert!(ours.iter().any(|event| event["count"].parse::<u64>().unwrap() > 1), "{ours:?}");
    assert!(ours.iter().all(|event| event["level"] == "WARN"), "{ours:?}");
    assert_no_secrets();
}

#[tokio::test]
async fn a_full_queue_is_counted() {
    listen();
    let server = RedisServer::start().await;
    let address = format!("127.0.0.1:{}", server.port());
    let store = Store::builder().max_queued(1).redis(&server.url()).unwrap();
    let bucket = TokenBucket::new(&store, "queued", Quota::per_second(1_000_000)).unwrap();
    bucket.allow(KEY).await.unwrap();
    let calls = (0..100).map(|caller| bucket.allow(format!("{KEY}-{caller}")));
    let outcomes = futures::future::join_all(calls).await;
    let overloaded = outcomes.iter().flat_map(|outcome| outcome.as_ref().err()).count();
    assert!(overloaded > 0);
    assert_eq!(decisions("token_bucket", "queued", "overloaded"), overloaded as f64);
    let labels = [("server", &*address), ("event", "overloaded")];
    assert_eq!(value("tower_distributed_events_total", &labels), overloaded as f64);
    assert_no_secrets();
}
