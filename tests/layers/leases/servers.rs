//! Servers behind the layers: axum and tonic, and clients that go away or stop reading.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get as on_get;
use futures::stream;
use http::{Method, StatusCode};
use tonic::Code;
use tonic_health::pb::health_client::HealthClient;
use tower_distributed::extract::{header, path};
use tower_distributed::response::{LeaseEnd, UntilBodyEnd};
use tower_distributed::web::{concurrency_limit, rw_lock};
use tower_distributed::{ConcurrencyLimitLayer, WaitGroup, grpc};

use crate::families::{becomes_free, locks, permits};
use crate::health::{check, question, serve_health};
use crate::net::{client, serve};
use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    a_client_that_stops_reading_gives_its_permit_back,
    readers_share_and_writers_do_not,
    a_permit_is_held_while_a_stream_lasts,
);

/// The head of an endless answer, which nobody reads until the permit is back.
async fn stalled(group: &WaitGroup, on_lease_end: LeaseEnd) -> reqwest::Response {
    let endless = || stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[0; 1 << 16])));
    let app = Router::new().route("/", on_get(async move || Body::from_stream(endless())));
    let hold = UntilBodyEnd::default()
        .idle_timeout(Duration::from_millis(50))
        .unwrap();
    let limit = concurrency_limit(group.clone(), header("x-api-key").unwrap().plain());
    let url = serve(app.layer(limit.hold(hold.on_lease_end(on_lease_end)))).await;
    let response = client()
        .get(url)
        .header("x-api-key", "ann")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    eventually("the permit to be back", SOON, async || {
        group.count("ann").await.unwrap() == 0
    })
    .await;
    response
}

/// And goes on without it, or is cut off where that is set.
async fn a_client_that_stops_reading_gives_its_permit_back(stores: Stores) {
    let group = permits(&stores.open(), 1);
    let mut response = stalled(&group, LeaseEnd::Detach).await;
    let mut read = 0;
    // More than any buffer in between holds.
    while read < 64 << 20 {
        read += response.chunk().await.unwrap().unwrap().len();
    }
    assert_eq!(group.count("ann").await.unwrap(), 0);

    let mut response = stalled(&group, LeaseEnd::Abort).await;
    loop {
        match response.chunk().await {
            Ok(chunk) => assert!(chunk.is_some(), "it ends as if it were complete"),
            Err(error) => return assert!(error.is_body() || error.is_decode(), "{error:?}"),
        }
    }
}

/// GET, HEAD and OPTIONS read.
async fn readers_share_and_writers_do_not(stores: Stores) {
    async fn done() -> &'static str {
        "done"
    }
    let lock = locks(&stores.open());
    let routes = on_get(done).put(done).delete(done).options(done);
    let url = serve(
        Router::new()
            .route("/1", routes)
            .layer(rw_lock(lock.clone(), path())),
    )
    .await
        + "/1";
    let _reader = lock.read("/1").await.unwrap();
    for (method, status) in [
        (Method::GET, StatusCode::OK),
        (Method::HEAD, StatusCode::OK),
        (Method::OPTIONS, StatusCode::OK),
        (Method::PUT, StatusCode::LOCKED),
        (Method::DELETE, StatusCode::LOCKED),
    ] {
        let answer = client().request(method.clone(), &url).send().await.unwrap();
        assert_eq!(answer.status(), status, "{method} beside a reader");
    }
}

async fn a_permit_is_held_while_a_stream_lasts(stores: Stores) {
    let limit = ConcurrencyLimitLayer::new(
        permits(&stores.open(), 1),
        header("x-tenant").unwrap().plain(),
    );
    let channel = serve_health!(
        limit
            .hold(UntilBodyEnd::default())
            .reject_with(grpc::refuse())
    );
    let mut client = HealthClient::new(channel.clone());
    let mut stream = client.watch(question("ann")).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    let status = check(&channel, "ann").await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::ResourceExhausted, "no permit is free")
    );
    check(&channel, "bob").await.unwrap();
    drop(stream);
    becomes_free(&stores, "ann").await;
    eventually("the permit to be back", SOON, async || {
        check(&channel, "ann").await.is_ok()
    })
    .await;
}
