//! axum: a limit that finds out what the service can do.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use axum::{Router, body};
use futures::{StreamExt as _, stream};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::wait_group::{Adaptive, Signal};
use tower_distributed::{ConcurrencyLimitLayer, WaitGroup, web};

use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    a_body_that_streams_is_in_flight,
    a_heavy_request_takes_the_whole_limit
);

const WINDOW: Duration = Duration::from_millis(10);

async fn a_body_that_streams_is_in_flight(stores: Stores) {
    let group = WaitGroup::new(&stores.open(), "backend", 4).unwrap();
    let adaptive = Adaptive::aimd().max(8).window(WINDOW);
    let limit = web::concurrency_limit(group.clone(), |_: &Request<Body>| "all")
        .adaptive(adaptive)
        .unwrap();
    let endless =
        async || Body::from_stream(stream::pending::<Result<body::Bytes, std::io::Error>>());
    let app = Router::new()
        .route("/endless", get(endless))
        .route("/", get(async || ""))
        .layer(limit);
    let call = |path: &str| {
        app.clone()
            .oneshot(Request::get(path).body(Body::empty()).unwrap())
    };
    let mut bodies = Vec::new();
    for _ in 0..3 {
        bodies.push(
            call("/endless")
                .await
                .unwrap()
                .into_body()
                .into_data_stream(),
        );
    }
    assert!(futures::poll!(bodies[0].next()).is_pending());
    // One request at a time, but three more permits are held.
    eventually("a higher limit", SOON, async || {
        assert_eq!(call("/").await.unwrap().status(), StatusCode::OK);
        group
            .inspect_limit("all")
            .await
            .unwrap()
            .is_some_and(|state| state.limit > 4 && state.in_flight >= 3)
    })
    .await;
}

async fn a_heavy_request_takes_the_whole_limit(stores: Stores) {
    let group = WaitGroup::new(&stores.open(), "backend", 4).unwrap();
    let classify = |_: &Result<u64, std::io::Error>| Signal::Ignore;
    let counted = group.clone();
    let count = service_fn(move |_: u32| {
        let counted = counted.clone();
        async move { Ok(u64::from(counted.count("all").await.unwrap())) }
    });
    let limit = ConcurrencyLimitLayer::new(group, |_: &u32| "all").weight(|weight: &u32| *weight);
    let service = limit
        .adaptive(Adaptive::gradient().max(9).classify(classify))
        .unwrap()
        .layer(count);
    for (weight, taken) in [(3, 3), (4, 4), (9, 4)] {
        assert_eq!(service.clone().oneshot(weight).await.unwrap(), taken);
    }
    let refused = service.oneshot(10).await.unwrap_err().to_string();
    assert!(
        refused.contains("a weight of 10 can never be admitted by a limit of 9"),
        "{refused}"
    );
}
