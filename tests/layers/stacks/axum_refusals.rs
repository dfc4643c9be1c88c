//! What a client of an axum server reads: header fields and problem documents.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get as on_get;
use http::StatusCode;
use serde_json::json;
use tower_distributed::response::{RateLimitFields, refuse};
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};

use crate::net::{Answer, get, serve};
use crate::stores::{SOON, Stores, at_most, on_each_store};
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

on_each_store!(
    allowed_responses_and_refusals_carry_the_fields,
    legacy_fields_are_by_choice,
    retry_after_is_never_zero,
    cost_above_the_burst_is_a_bad_request,
    what_never_refills_names_no_time,
);

/// One bucket for all; a request costs what its query says.
async fn serve_limited(bucket: TokenBucket, fields: RateLimitFields) -> String {
    let cost = |request: &Request| request.uri().query().map_or(1, |cost| cost.parse().unwrap());
    let layer =
        RateLimitLayer::new(bucket, |_: &Request| "all").cost(cost).fields(fields).reject_with(refuse());
    serve(Router::new().route("/", on_get(async || "hello")).layer(layer)).await
}

fn seconds(answer: &Answer, name: &str) -> u64 {
    answer.header(name).unwrap_or_else(|| panic!("no {name} in {answer:?}")).parse().unwrap()
}

async fn allowed_responses_and_refusals_carry_the_fields(stores: Stores) {
    let quotas = [Quota::per_hour(1).burst(2).named("tight"), Quota::per_hour(60).named("wide")];
    let bucket = TokenBucket::new(&stores.open(), "requests", quotas).unwrap();
    let url = serve_limited(bucket, RateLimitFields::default()).await;

    let allowed = get(&url, &[]).await;
    assert_eq!((allowed.status, &*allowed.body), (StatusCode::OK, "hello"));
    let policy = r#""tight";q=2;w=7200;qu="tokens", "wide";q=60;w=3600;qu="tokens""#;
    assert_eq!(allowed.header("ratelimit-policy"), Some(policy));
    assert_eq!(allowed.header("ratelimit"), Some(r#""tight";r=1;t=3600, "wide";r=59;t=3540"#));
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(allowed.header("x-ratelimit-limit"), None);

    assert_eq!(get(&url, &[]).await.status, StatusCode::OK);
    let refused = get(&url, &[]).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.header("ratelimit-policy"), Some(policy));
    let limit = refused.header("ratelimit").unwrap();
    assert!(limit.starts_with(r#""tight";r=0;t=3"#) && limit.contains(r#""wide";r=58;t="#), "{limit}");
    assert!((3500..=3600).contains(&seconds(&refused, "retry-after")), "{refused:?}");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(
        refused.json(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota exceeded",
            "status": 429,
            "violated-policies": ["tight"],
        })
    );
}

async fn legacy_fields_are_by_choice(stores: Stores) {
    let url = serve_limited(at_most(1, &stores.open()), RateLimitFields::legacy()).await;
    let allowed = get(&url, &[]).await;
    assert_eq!(seconds(&allowed, "x-ratelimit-limit"), 1);
    assert_eq!(seconds(&allowed, "x-ratelimit-remaining"), 0);
    assert_eq!(seconds(&allowed, "x-ratelimit-reset"), 3600);
    let refused = get(&url, &[]).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(seconds(&refused, "x-ratelimit-remaining"), 0);
    assert_eq!(seconds(&refused, "x-ratelimit-reset"), seconds(&refused, "retry-after"));
    assert_eq!(refused.header("ratelimit"), None);
}

async fn retry_after_is_never_zero(stores: Stores) {
    let quota = Quota::new(1, Duration::from_millis(300));
    let bucket = TokenBucket::new(&stores.open(), "requests", quota).unwrap();
    let url = serve_limited(bucket, RateLimitFields::default()).await;
    eventually("two requests within 300 ms", SOON, async || {
        let answer = get(&url, &[]).await;
        let refused = answer.status == StatusCode::TOO_MANY_REQUESTS;
        assert!(!refused || answer.header("retry-after") == Some("1"), "{answer:?}");
        refused
    })
    .await;
}

async fn cost_above_the_burst_is_a_bad_request(stores: Stores) {
    let url = serve_limited(at_most(2, &stores.open()), RateLimitFields::default()).await;
    let refused = get(&format!("{url}/?3"), &[]).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.header("retry-after"), None);
    let problem = refused.json();
    assert_eq!(problem["status"], 400);
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("burst of 2")), "{problem}");
    assert_eq!(get(&format!("{url}/?2"), &[]).await.status, StatusCode::OK, "nothing was charged");
}

async fn what_never_refills_names_no_time(stores: Stores) {
    let bucket = TokenBucket::new(&stores.open(), "trial", Quota::non_refilling(1)).unwrap();
    let url = serve_limited(bucket.clone(), RateLimitFields::default()).await;
    assert_eq!(get(&url, &[]).await.header("ratelimit"), Some(r#""default";r=0"#));
    let refused = get(&url, &[]).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.header("ratelimit-policy"), Some(r#""default";q=1;qu="tokens""#));
    assert_eq!(refused.header("retry-after"), None);
    bucket.reset("all").await.unwrap();
    assert_eq!(get(&url, &[]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn an_outage_is_a_503_and_ends_with_it() {
    let redis = RedisServer::start().await;
    let bucket = at_most(1_000, &patient!(redis.url()));
    let url = serve_limited(bucket, RateLimitFields::default()).await;
    assert_eq!(get(&url, &[]).await.status, StatusCode::OK);

    redis.kill9();
    // More than enough for the breaker to open.
    for _ in 0..6 {
        let refused = get(&url, &[]).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(refused.header("ratelimit"), None);
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        let problem = refused.json();
        assert_eq!(problem["status"], 503);
        assert!(!refused.body.contains("127.0.0.1"), "the cause is ours alone: {problem}");
    }

    redis.restart().await;
    eventually("the store to be back", SOON, async || get(&url, &[]).await.status == StatusCode::OK).await;
}
