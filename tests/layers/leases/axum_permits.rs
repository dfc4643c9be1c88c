//! axum: permits that routes share, and that are held while a client reads.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get as on_get;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::stream;
use http::StatusCode;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower_distributed::WaitGroup;
use tower_distributed::extract::header;
use tower_distributed::response::{LeaseEnd, UntilBodyEnd};
use tower_distributed::web::concurrency_limit;

use crate::families::permits;
use crate::net::{client, get, serve};
use crate::stores::{SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    routes_share_the_permits,
    a_permit_is_held_while_the_client_reads,
    a_client_that_goes_away_gives_its_permit_back,
    a_client_that_stops_reading_gives_its_permit_back,
    a_client_that_stops_reading_is_cut_off_where_that_is_set,
    requests_wait_for_slow_readers,
    to_the_head_only,
);

type Chunk = Result<Bytes, Infallible>;

/// Where the chunks of the slow answers come from, one after the other.
#[derive(Clone, Default)]
struct Chunks(Arc<Mutex<Vec<UnboundedReceiver<Chunk>>>>);

impl Chunks {
    fn next(&self) -> UnboundedSender<Chunk> {
        let (sender, chunks) = unbounded();
        self.0.lock().unwrap().insert(0, chunks);
        sender
    }

    async fn answer(self) -> Body {
        Body::from_stream(self.0.lock().unwrap().pop().unwrap())
    }
}

/// `/quick` answers at once, `/slow` chunk by chunk.
fn app(chunks: &Chunks) -> Router {
    let chunks = chunks.clone();
    Router::new()
        .route("/quick", on_get(async || "hello"))
        .route("/slow", on_get(async move || chunks.clone().answer().await))
}

const ANN: [(&str, &str); 1] = [("x-api-key", "ann")];

/// The head of the slow answer.
async fn slow(url: &str) -> reqwest::Response {
    let response = client().get(format!("{url}/slow")).header("x-api-key", "ann").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response
}

async fn routes_share_the_permits(stores: Stores) {
    let chunks = Chunks::default();
    let limit = concurrency_limit(permits(&stores.open(), 1), header("x-api-key").unwrap().plain());
    let (here, there) =
        (serve(app(&chunks).layer(limit.clone())).await, serve(app(&chunks).layer(limit)).await);
    let sender = chunks.next();
    let response = slow(&here).await;
    for url in [&here, &there] {
        let refused = get(&format!("{url}/quick"), &ANN).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(get(&format!("{url}/quick"), &[("x-api-key", "bob")]).await.body, "hello");
        assert_eq!(get(&format!("{url}/quick"), &[]).await.status, StatusCode::BAD_REQUEST, "without a key");
    }
    drop(sender);
    assert_eq!(response.text().await.unwrap(), "");
    eventually("the permit to be back", SOON, async || {
        get(&format!("{there}/quick"), &ANN).await.status == StatusCode::OK
    })
    .await;
}

async fn a_permit_is_held_while_the_client_reads(stores: Stores) {
    let group = permits(&stores.open(), 3);
    let chunks = Chunks::default();
    let limit = concurrency_limit(group.clone(), header("x-api-key").unwrap().plain());
    let url = serve(app(&chunks).layer(limit)).await;
    let sender = chunks.next();
    let mut response = slow(&url).await;
    for chunk in ["one", "two"] {
        sender.unbounded_send(Ok(Bytes::from(chunk))).unwrap();
        assert_eq!(response.chunk().await.unwrap().unwrap(), chunk);
        assert_eq!(group.count("ann").await.unwrap(), 1);
    }
    drop(sender);
    assert_eq!(response.chunk().await.unwrap(), None);
    eventually("the permit to be back", SOON, async || group.count("ann").await.unwrap() == 0).await;
}

async fn a_client_that_goes_away_gives_its_permit_back(stores: Stores) {
    let group = permits(&stores.open(), 3);
    let chunks = Chunks::default();
    let limit = concurrency_limit(group.clone(), header("x-api-key").unwrap().plain());
    let url = serve(app(&chunks).layer(limit)).await;
    let sender = chunks.next();
    let mut response = slow(&url).await;
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

async fn a_client_that_stops_reading_gives_its_permit_back(stores: Stores) {
    let group = permits(&stores.open(), 1);
    let mut response = stalled(&group, LeaseEnd::Detach).await;
    let mut read = 0;
    // More than any buffer in between holds.
    while read < 64 << 20 {
        read += response.chunk().await.unwrap().unwrap().len();
    }
    assert_eq!(group.count("ann").await.unwrap(), 0);
}

async fn a_client_that_stops_reading_is_cut_off_where_that_is_set(stores: Stores) {
    let mut response = stalled(&permits(&stores.open(), 1), LeaseEnd::Abort).await;
    loop {
        match response.chunk().await {
            Ok(chunk) => assert!(chunk.is_some(), "it ends as if it were complete"),
            Err(error) => return assert!(error.is_body() || error.is_decode(), "{error:?}"),
        }
    }
}

async fn requests_wait_for_slow_readers(stores: Stores) {
    let chunks = Chunks::default();
    let limit =
        concurrency_limit(permits(&stores.open(), 1), header("x-api-key").unwrap().plain()).max_wait(SOON);
    let url = serve(app(&chunks).layer(limit)).await;
    let (first, second) = (chunks.next(), chunks.next());
    let response = slow(&url).await;
    let next = url.clone();
    let waiting = tokio::spawn(async move { slow(&next).await.text().await.unwrap() });
    second.unbounded_send(Ok(Bytes::from("second"))).unwrap();
    drop(second);
    first.unbounded_send(Ok(Bytes::from("first"))).unwrap();
    assert!(!waiting.is_finished());
    drop(first);
    assert_eq!(response.text().await.unwrap(), "first");
    assert_eq!(waiting.await.unwrap(), "second");
}

async fn to_the_head_only(stores: Stores) {
    let group = permits(&stores.open(), 1);
    let chunks = Chunks::default();
    let limit = concurrency_limit(group.clone(), header("x-api-key").unwrap().plain()).until_response();
    let url = serve(app(&chunks).layer(limit)).await;
    let sender = chunks.next();
    let response = slow(&url).await;
    eventually("the permit to be back", SOON, async || group.count("ann").await.unwrap() == 0).await;
    assert_eq!(get(&format!("{url}/quick"), &ANN).await.body, "hello");
    drop(sender);
    assert_eq!(response.text().await.unwrap(), "");
}
