//! Requests that are refused because a layer is set up wrongly are told, with the remedy.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_distributed::extract::header;
use tower_distributed::{BloomFilter, Dedupe, Mutex, Refusal, Store, grpc, web};

use crate::seen::{Event, assert_no_secrets, events, listen, value};
use crate::{KEY, SOON};
use support::eventually;

fn request() -> Request<String> {
    Request::post("/")
        .header("x-id", KEY)
        .body(String::new())
        .unwrap()
}

/// The events with this text. There is at most one a second.
async fn told(text: &str, ask: impl AsyncFn()) -> Vec<Event> {
    let found = || {
        let mut told = events(&[("event", "misconfigured"), ("namespace", "layers")]);
        told.retain(|event| event["message"].contains(text));
        told
    };
    eventually("an event", SOON, async || {
        ask().await;
        !found().is_empty()
    })
    .await;
    found()
}

/// Two in the same second: with the responses of the layer, and with those of the service.
#[tokio::test]
async fn a_capacity_that_was_changed_is_told_with_the_remedy() {
    listen();
    let store = Store::in_memory();
    let by = || header("x-id").unwrap();
    let once = |name: &str| {
        let filter = |capacity| BloomFilter::new(&store, name, capacity, 0.01).unwrap();
        let dedupe = Dedupe::builder()
            .remember_forever()
            .build(&filter(10_000))
            .unwrap();
        (filter(1000), dedupe)
    };
    let ((changed, ours), (own, theirs)) = (once("changed"), once("own"));
    assert!(changed.insert("x").await.unwrap() && own.insert("x").await.unwrap());
    let handle =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = web::dedupe(ours, by()).layer(handle);
    let told = told("\"changed\"", async || {
        let response = service.clone().oneshot(request()).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    })
    .await;
    assert!(
        told.iter().all(|event| event["level"] == "ERROR"),
        "{told:?}"
    );
    assert!(
        told[0]["message"].contains("choose another name"),
        "{told:?}"
    );
    let labels = [("namespace", "layers"), ("event", "misconfigured")];
    assert!(value("tower_distributed_events_total", &labels) >= 1.0);
    let layer = web::dedupe(theirs, by())
        .reject_with(|refusal: Refusal| Response::new(format!("{:?}", refusal.kind())));
    let service = layer.layer(handle);
    self::told("\"own\"", async || {
        let response = service.clone().oneshot(request()).await.unwrap();
        assert_eq!(response.body(), "Invalid");
    })
    .await;
    assert_no_secrets();
}

#[tokio::test]
async fn a_setting_of_a_request_that_is_out_of_range_is_told_over_grpc() {
    listen();
    let mutex = Mutex::new(&Store::in_memory(), "locks").unwrap();
    let handle = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(tonic::body::Body::empty()))
    });
    let key = tower_distributed::extract::extension(|user: &u64| *user);
    let service = grpc::mutex(mutex, key).layer(handle);
    // A missing extension has an event of its own.
    let response = service.oneshot(request()).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "13");
    assert!(!events(&[("event", "extension_missing"), ("namespace", "locks")]).is_empty());
    let ours = events(&[("event", "misconfigured")]);
    assert!(
        ours.iter()
            .all(|event| !event["message"].contains("extension")),
        "{ours:?}"
    );
}
