//! How refusals are told: over HTTP by status, Retry-After and a problem document, over gRPC by codes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get as on_get;
use tokio_test::{assert_pending, task};
use tower_distributed::StoreFailure;
use tower_distributed::extract::SharedGet;
use tower_distributed::response::{Answer as Shared, AnswerCodec};
use tower_distributed::single_flight::SingleFlightBuilder;
use tower_distributed::web::single_flight;
use tower_distributed::{SingleFlight, Store};

use crate::net::{get, serve};
use crate::stores::{SOON, Stores, away, on_each_store};
use support::eventually;

on_each_store!(who_waited_too_long);

fn everything(_: &Request) -> &'static str {
    "everything"
}

type Builder = SingleFlightBuilder<Shared, std::convert::Infallible>;

fn builder() -> Builder {
    SingleFlight::builder(AnswerCodec).lease_ttl(Duration::from_secs(20))
}

fn build(builder: Builder, store: &Store) -> SingleFlight<Shared> {
    builder.build(store, "requests").unwrap()
}

async fn behind(flight: SingleFlight<Shared>) -> String {
    let app = Router::new().route("/", on_get(async || "hello"));
    serve(app.layer(single_flight(flight, SharedGet::new(everything)))).await
}

const REDUCED: &str = "Temporarily reduced capacity";

/// Somebody in another process holds the key while this block runs.
macro_rules! while_held {
    ($stores:expr, $builder:expr, |$url:ident| $block:block) => {{
        let other = build($builder, &$stores.open());
        let runs = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&runs);
        let hold = move || {
            begins.store(true, Ordering::SeqCst);
            std::future::pending()
        };
        let mut holding = task::spawn(other.run("GET  fleet.example / everything", hold));
        eventually("it to be held", SOON, async || {
            assert_pending!(holding.poll());
            runs.load(Ordering::SeqCst)
        })
        .await;
        let $url = behind(build($builder.max_wait(Duration::from_millis(30)), &$stores.open())).await;
        $block
        drop(holding);
        eventually("it to be free", SOON, async || get(&$url, &[]).await.body == "hello").await;
    }};
}

async fn who_waited_too_long(stores: Stores) {
    while_held!(stores, builder(), |url| {
        assert_eq!(get(&url, &[]).await.problem(), (503, None, REDUCED.into()));
    });
}

#[tokio::test]
async fn an_outage_is_503_and_says_nothing_of_the_cause() {
    let url = behind(build(builder().on_store_failure(StoreFailure::FailClosed), &away())).await;
    for _ in 0..4 {
        let answer = get(&url, &[]).await;
        assert_eq!(answer.problem(), (503, Some(1), "Service Unavailable".into()));
        assert!(!answer.body.contains("127.0.0.1"), "the cause is ours alone: {}", answer.body);
    }
}

#[tokio::test]
async fn alone_it_is_answered() {
    let url = behind(build(builder().on_store_failure(StoreFailure::FailOpen), &away())).await;
    assert_eq!(get(&url, &[]).await.body, "hello");
}
