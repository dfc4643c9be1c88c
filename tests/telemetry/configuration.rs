//! Mistakes of configuration are reported: a missing extension, and a stream that outlives its permit. So are changes of
//! settings.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use support::redis_server::RedisServer;
use support::{eventually, patient};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::extract::extension;
use tower_distributed::response::{UntilBodyEnd, UpstreamLimits};
use tower_distributed::{FleetQuotas, Quota, RateLimitLayer, Store, TokenBucket, WaitGroup, web};

use crate::SOON;
use crate::seen::{events, listen, value};

#[derive(Clone)]
struct User(u64);

fn counted(event: &str, namespace: &str) -> f64 {
    value(
        "tower_distributed_events_total",
        &[("namespace", namespace), ("event", event)],
    )
}

#[tokio::test]
async fn a_missing_extension_is_named_by_an_event_and_to_programmers() {
    listen();
    let bucket = TokenBucket::new(&Store::in_memory(), "wiring", Quota::per_second(5)).unwrap();
    let limit = web::rate_limit(bucket, extension(|user: &User| user.0));
    let service = limit.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    let refused = service
        .clone()
        .oneshot(Request::new(Body::empty()))
        .await
        .unwrap();
    assert_eq!(refused.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let problem = refused.into_body().collect().await.unwrap().to_bytes();
    let problem = String::from_utf8_lossy(&problem);
    assert!(
        problem.contains("no extension") && problem.contains("configuration::User"),
        "{problem}"
    );

    assert_eq!(counted("extension_missing", "wiring"), 1.0);
    let told = events(&[("event", "extension_missing"), ("namespace", "wiring")]);
    assert_eq!(told.len(), 1, "{told:?}");

    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(User(7));
    assert_eq!(
        service.oneshot(request).await.unwrap().status(),
        StatusCode::OK
    );
    assert_eq!(counted("extension_missing", "wiring"), 1.0);
}

#[tokio::test]
async fn limits_of_an_upstream_that_cannot_be_read_or_kept_are_told() {
    listen();
    let bucket = TokenBucket::new(&Store::in_memory(), "upstream", Quota::per_second(5)).unwrap();
    let key = |request: &Request<Body>| request.uri().path().to_owned();
    let limit = RateLimitLayer::new(bucket, key).learn(UpstreamLimits::default());
    for (told, ignored, clamped) in [
        ("20", 0.0, 0.0),
        ("many", 1.0, 0.0),
        ("999999999999", 1.0, 1.0),
    ] {
        let upstream = move |_: Request<Body>| {
            let response = Response::builder()
                .header("x-ratelimit-limit", told)
                .header("x-ratelimit-reset", "60");
            std::future::ready(Ok::<_, Infallible>(response.body(Body::empty()).unwrap()))
        };
        let request = Request::builder()
            .uri(format!("/{told}"))
            .body(Body::empty())
            .unwrap();
        limit
            .clone()
            .layer(service_fn(upstream))
            .oneshot(request)
            .await
            .unwrap();
        let counts = ["upstream_field_ignored", "upstream_field_clamped"]
            .map(|event| counted(event, "upstream"));
        assert_eq!(counts, [ignored, clamped], "{told}");
    }
}

#[tokio::test]
async fn a_body_that_outlives_its_permit_is_told() {
    listen();
    let streams = WaitGroup::new(&Store::in_memory(), "silent", 1).unwrap();
    let hold = UntilBodyEnd::default()
        .idle_timeout(Duration::from_millis(20))
        .unwrap();
    let limit = web::concurrency_limit(streams.clone(), |_: &Request<Body>| "all").hold(hold);
    let service = limit.layer(service_fn(async |_: Request<Body>| {
        let silent = futures::stream::pending::<Result<Bytes, Infallible>>();
        Ok::<_, Infallible>(Response::new(Body::from_stream(silent)))
    }));
    let _open = service.oneshot(Request::new(Body::empty())).await.unwrap();
    eventually("the event", SOON, async || {
        counted("body_outlived_lease", "silent") > 0.0
    })
    .await;
    eventually("the permit is free", SOON, async || {
        streams.count("all").await.unwrap() == 0
    })
    .await;
    assert_eq!(
        events(&[("event", "body_outlived_lease"), ("namespace", "silent")]).len(),
        1
    );
}

#[tokio::test]
async fn a_setting_of_another_type_is_told_without_a_call() {
    listen();
    let server = RedisServer::start().await;
    server.cli(&["SET", "td:{another:}:setting:quotas", "5/s"]);
    let quotas = FleetQuotas::new(&patient!(server.url()), "another", "1/s").unwrap();
    eventually("it is told", SOON, async || {
        counted("setting_ignored", "another") == 1.0
    })
    .await;
    assert_eq!(quotas.current().to_string(), "1/s");
}

/// The store's thread may have heard of a change before the caller of `set`: then it takes the value over, and tells it a
/// moment later.
async fn changes_told(expected: f64) {
    eventually("the change is told", SOON, async || {
        counted("setting_changed", "settings") == expected
    })
    .await;
}

#[tokio::test]
async fn changes_of_a_setting_are_told_without_who_has_set_it() {
    listen();
    let server = RedisServer::start().await;
    let quotas = FleetQuotas::new(&patient!(server.url()), "settings", "1/s").unwrap();
    quotas.set("2/s", "ann").await.unwrap();
    changes_told(1.0).await;
    // Later than the first version, whose message may come after this.
    // Both at once: a read in between would tell twice.
    let unreadable = ["2 2000000000000000 0\nann\n+10/fortnight", "10/s"];
    server.cli(&[
        "RPUSH",
        "td:{settings:}:setting:quotas",
        unreadable[0],
        unreadable[1],
    ]);
    for _ in 0..3 {
        assert!(quotas.refresh().await.unwrap_err().is_wrong_type());
    }
    eventually("it is told", SOON, async || {
        counted("setting_ignored", "settings") == 1.0
    })
    .await;
    server.cli(&["RPOP", "td:{settings:}:setting:quotas"]);
    assert_eq!(
        (
            quotas.refresh().await.unwrap(),
            quotas.current().to_string()
        ),
        (2, "2/s".into())
    );
    quotas.set("3/s", "ann").await.unwrap();
    changes_told(2.0).await;
    let told = events(&[("event", "setting_changed"), ("namespace", "settings")]);
    let text = format!("{told:?}");
    assert!(
        told.len() == 2 && text.contains("version 3: 3/s") && !text.contains("ann"),
        "{text}"
    );
}
