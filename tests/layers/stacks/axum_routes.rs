//! axum: the layer on a router and its routes, without a `HandleErrorLayer`, and what a client reads.

use axum::extract::Request;
use axum::routing::get as on_get;
use axum::{Extension, Router};
use http::StatusCode;
use serde_json::json;
use tower_distributed::extract::header;
use tower_distributed::response::{RateLimitFields, refuse};
use tower_distributed::token_bucket::Decision;
use tower_distributed::web::insert_decision;
use tower_distributed::{Quota, RateLimitLayer, TokenBucket};

use crate::net::{get, serve};
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(routes_share_the_limit_and_handlers_see_the_decision, responses_carry_the_fields,);

async fn remaining(Extension(decision): Extension<Decision>) -> String {
    decision.remaining().to_string()
}

fn api(stores: &Stores) -> Router {
    let layer = RateLimitLayer::new(at_most(3, &stores.open()), header("x-api-key").unwrap().plain())
        .reject_with(refuse())
        .on_admit(insert_decision);
    Router::new().route("/a", on_get(remaining)).route("/b", on_get(remaining)).layer(layer)
}

async fn routes_share_the_limit_and_handlers_see_the_decision(stores: Stores) {
    let url = serve(api(&stores)).await;
    let (a, b) = (format!("{url}/a"), format!("{url}/b"));
    let ann = [("x-api-key", "ann")];
    assert_eq!(get(&a, &ann).await.body, "2");
    assert_eq!(get(&b, &ann).await.body, "1");
    assert_eq!(get(&a, &ann).await.body, "0");
    assert_eq!(get(&b, &ann).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(&a, &ann).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(&a, &[("x-api-key", "bob")]).await.body, "2");
    // Another process shares the limit.
    let there = serve(api(&stores)).await + "/a";
    assert_eq!(get(&there, &ann).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get(&there, &[("x-api-key", "bob")]).await.body, "1");
}

async fn responses_carry_the_fields(stores: Stores) {
    let quotas = [Quota::per_hour(1).burst(2).named("tight"), Quota::per_hour(60).named("wide")];
    let bucket = TokenBucket::new(&stores.open(), "requests", quotas).unwrap();
    let limit = RateLimitLayer::new(bucket, |_: &Request| "all").cost(|_: &Request| 1);
    let limit = limit.fields(RateLimitFields::default()).reject_with(refuse());
    let url = serve(Router::new().route("/", on_get(async || "hello")).layer(limit)).await;

    let allowed = get(&url, &[]).await;
    assert_eq!((allowed.status, &*allowed.body), (StatusCode::OK, "hello"));
    let policy = r#""tight";q=2;w=7200;qu="tokens", "wide";q=60;w=3600;qu="tokens""#;
    assert_eq!(allowed.header("ratelimit-policy"), Some(policy));
    assert_eq!(allowed.header("ratelimit"), Some(r#""tight";r=1;t=3600, "wide";r=59;t=3540"#));
    assert_eq!((allowed.header("retry-after"), allowed.header("x-ratelimit-limit")), (None, None));

    assert_eq!(get(&url, &[]).await.status, StatusCode::OK);
    let refused = get(&url, &[]).await;
    let (status, after, _) = refused.problem();
    assert!(status == 429 && after.is_some_and(|after| (3500..=3600).contains(&after)), "{refused:?}");
    assert_eq!(refused.header("ratelimit-policy"), Some(policy));
    let limit = refused.header("ratelimit").unwrap();
    assert!(limit.starts_with(r#""tight";r=0;t=3"#) && limit.contains(r#""wide";r=58;t="#), "{limit}");
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
