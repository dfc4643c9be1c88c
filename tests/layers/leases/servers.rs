//! Servers behind the layers: axum and tonic, and clients that go away or stop reading.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get as on_get;
use futures::channel::mpsc::{UnboundedSender, unbounded};
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
use crate::net::{client, get, serve};
use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    routes_share_a_permit_that_is_held_while_the_client_reads,
    a_client_that_goes_away_gives_its_permit_back,
    a_client_that_stops_reading_gives_its_permit_back,
    readers_share_and_writers_do_not,
    a_permit_is_held_while_a_stream_lasts,
);

type Chunk = Result<Bytes, Infallible>;

/// `/quick` answers at once, `/slow` chunk by chunk, as they are sent; the first request gets them.
fn app() -> (UnboundedSender<Chunk>, Router) {
    let (sender, chunks) = unbounded();
    let chunks = Arc::new(Mutex::new(Some(chunks)));
    let slow = async move || Body::from_stream(chunks.lock().unwrap().take().unwrap());
    (sender, Router::new().route("/quick", on_get(async || "hello")).route("/slow", on_get(slow)))
}

const ANN: [(&str, &str); 1] = [("x-api-key", "ann")];

/// The head of the slow answer.
async fn slow(url: &str) -> reqwest::Response {
    let response = client().get(format!("{url}/slow")).header("x-api-key", "ann").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response
}

async fn routes_share_a_permit_that_is_held_while_the_client_reads(stores: Stores) {
    let limit = concurrency_limit(permits(&stores.open(), 1), header("x-api-key").unwrap().plain());
    let (sender, app) = app();
    let (here, there) = (serve(app.clone().layer(limit.clone())).await, serve(app.layer(limit)).await);
    let mut response = slow(&here).await;
    for chunk in ["one", "two"] {
        sender.unbounded_send(Ok(Bytes::from(chunk))).unwrap();
        assert_eq!(response.chunk().await.unwrap().unwrap(), chunk);
        for url in [&here, &there] {
            let quick = format!("{url}/quick");
            assert_eq!(get(&quick, &ANN).await.status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(get(&quick, &[("x-api-key", "bob")]).await.body, "hello");
            assert_eq!(get(&quick, &[]).await.status, StatusCode::BAD_REQUEST, "without a key");
        }
    }
    drop(sender);
    assert_eq!(response.chunk().await.unwrap(), None);
    eventually("the permit to be back", SOON, async || {
        get(&format!("{there}/quick"), &ANN).await.status == StatusCode::OK
    })
    .await;
}

async fn a_client_that_goes_away_gives_its_permit_back(stores: Stores) {
    let group = permits(&stores.open(), 3);
    let (sender, app) = app();
    let limit = concurrency_limit(group.clone(), header("x-api-key").unwrap().plain());
    let mut response = slow(&serve(app.layer(limit)).await).await;
    sender.unbounded_send(Ok(Bytes::from("one"))).unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "one");
    assert_eq!(group.count("ann").await.unwrap(), 1);
    drop(response);
    eventually("the permit to be back", SOON, async || group.count("ann").await.unwrap() == 0).await;
    drop(sender);
}

/// The head of an endless answer, which nobody reads until the permit is back.
async fn stalled(group: &WaitGroup, on_lease_end: LeaseEnd) -> reqwest::Response {
    let endless = || stream::repeat_with(|| Chunk::Ok(Bytes::from_static(&[0; 1 << 16])));
    let app = Router::new().route("/slow", on_get(async move || Body::from_stream(endless())));
    let hold = UntilBodyEnd::default().idle_timeout(Duration::from_millis(50)).unwrap();
    let limit = concurrency_limit(group.clone(), header("x-api-key").unwrap().plain());
    let response = slow(&serve(app.layer(limit.hold(hold.on_lease_end(on_lease_end)))).await).await;
    eventually("the permit to be back", SOON, async || group.count("ann").await.unwrap() == 0).await;
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

async fn send(method: Method, url: &str) -> (StatusCode, String) {
    let response = client().request(method, url).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

/// GET, HEAD and OPTIONS read.
async fn readers_share_and_writers_do_not(stores: Stores) {
    async fn done() -> &'static str {
        "done"
    }
    let lock = locks(&stores.open());
    let routes = on_get(done).put(done).delete(done).options(done);
    let url = serve(Router::new().route("/1", routes).layer(rw_lock(lock.clone(), path()))).await + "/1";
    for writes in [false, true] {
        let (reader, writer) = match writes {
            false => (Some(lock.read("/1").await.unwrap()), None),
            true => (None, Some(lock.write("/1").await.unwrap())),
        };
        for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE] {
            let reads = ![Method::PUT, Method::DELETE].contains(&method);
            let expected = if reads && !writes { StatusCode::OK } else { StatusCode::LOCKED };
            assert_eq!(send(method.clone(), &url).await.0, expected, "{method} beside a writer: {writes}");
        }
        drop((reader, writer));
    }
}

async fn a_permit_is_held_while_a_stream_lasts(stores: Stores) {
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), header("x-tenant").unwrap().plain());
    let channel = serve_health!(limit.hold(UntilBodyEnd::default()).reject_with(grpc::refuse()));
    let mut client = HealthClient::new(channel.clone());
    let mut stream = client.watch(question("ann")).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    let status = check(&channel, "ann").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "no permit is free"));
    check(&channel, "bob").await.unwrap();
    drop(stream);
    becomes_free(&stores, "ann").await;
    eventually("the permit to be back", SOON, async || check(&channel, "ann").await.is_ok()).await;
}
