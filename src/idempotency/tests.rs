use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _, once, pending};
use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};

use super::*;
use crate::dedupe::Replay;
use crate::response::FlightBody;

const MIB: usize = 1 << 20;

fn builder(store: &Store) -> IdempotencyBuilder<Body> {
    idempotency(store, "payments", |_: &Request<Body>| "ann")
}

fn post(key: &str, body: Body) -> Request<Body> {
    Request::post("/").header("idempotency-key", key).body(body).unwrap()
}

/// Sends a request to a service that counts its calls.
async fn send(
    layer: &IdempotencyLayer<Body>,
    calls: &Arc<AtomicUsize>,
    request: Request<Body>,
) -> Response<FlightBody<Body>> {
    let calls = Arc::clone(calls);
    let inner = service_fn(move |_: Request<Body>| {
        calls.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(Body::from("paid"))) }
    });
    layer.layer(inner).oneshot(request).await.unwrap()
}

/// A body that never ends.
fn stalled(bytes: usize) -> Body {
    let chunk = move |_| Ok::<_, Infallible>(Bytes::from(vec![b'x'; bytes / 16]));
    Body::from_stream(futures_util::stream::iter(0..16).map(chunk).chain(pending()))
}

/// A version of this crate with another format of records stores them under the same keys.
#[tokio::test]
async fn a_record_of_another_format_is_neither_an_error_nor_handled_again() {
    let (store, calls) = (Store::in_memory(), Arc::default());
    let replays = Replays::open(&store, "payments", "idempotency/0+http/1", DAY / 2880, DAY).unwrap();
    let Replay::New(claim) = Arc::new(replays).claim(record::key(&"ann".into(), b"key-1")).await.unwrap()
    else {
        panic!("the key is new")
    };
    claim.keep(b"a record".as_slice().into()).await.unwrap();
    let layer = builder(&store).build().unwrap();
    for _ in 0..2 {
        let response = send(&layer, &calls, post("key-1", Body::from("10 EUR"))).await;
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert!(!response.headers().contains_key("retry-after"), "it stays so");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(send(&layer, &calls, post("key-2", Body::empty())).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn uploads_that_stall_are_bounded_together() {
    let (layer, calls) = (builder(&Store::in_memory()).build().unwrap(), Arc::default());
    let mut uploads = FuturesUnordered::new();
    for upload in 0..100 {
        uploads.push(send(&layer, &calls, post(&format!("key-{upload}"), stalled(MIB))));
    }
    let mut refused = 0;
    while let Some(response) = futures_util::FutureExt::now_or_never(uploads.next()).flatten() {
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "1");
        refused += 1;
    }
    assert!((30..100).contains(&(100 - refused)) && refused >= 36, "{refused} of 100 were refused");
    drop(uploads);
    assert_eq!(send(&layer, &calls, post("key", Body::from("10 EUR"))).await.status(), StatusCode::OK);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn uploads_that_stall_are_ended() {
    let (layer, calls) = (builder(&Store::in_memory()).build().unwrap(), Arc::default());
    let upload = send(&layer, &calls, post("key", stalled(1024)));
    let response = tokio::time::timeout(DAY, upload).await.expect("it never ends");
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let whole = Body::from_stream(once(async { Ok::<_, Infallible>(Bytes::from_static(b"10 EUR")) }));
    assert_eq!(send(&layer, &calls, post("key", whole)).await.status(), StatusCode::OK);
}
