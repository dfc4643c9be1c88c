//! A response that the store has no room for. Its request was handled, and is not handled again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::post;
use tower_distributed::Store;
use tower_distributed::web::idempotency;

use crate::net::{Answer, ask, client, serve};
use crate::stores::SOON;
use support::redis_server::RedisServer;
use support::{eventually, patient};

/// A service that answers with so many bytes, after it has done something.
async fn service(store: &Store, bytes: usize, done: impl Fn() + Clone + Send + Sync + 'static) -> Service {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handler = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        done();
        let body = "a".repeat(bytes);
        async { body }
    };
    let layer = idempotency(store, "payments", |_: &Request| "ann").build().unwrap();
    let url = format!("{}/", serve(Router::new().route("/", post(handler)).layer(layer)).await);
    Service { url, calls }
}

struct Service {
    url: String,
    calls: Arc<AtomicUsize>,
}

impl Service {
    async fn pay(&self, key: &str) -> Answer {
        ask(client().post(&self.url).body("10 EUR"), &[("idempotency-key", key)]).await
    }

    /// Pays, and returns the answer to the same payment once it is known to be handled.
    async fn twice(&self) -> Answer {
        assert_eq!(self.pay("key-1").await.status, StatusCode::OK);
        let mut again = None;
        eventually("the payment to be recorded", SOON, async || {
            let answer = self.pay("key-1").await;
            let is_known = answer.header("retry-after").is_none();
            again = Some(answer);
            is_known
        })
        .await;
        assert_eq!(self.calls.load(Ordering::SeqCst), 1, "it is handled once");
        again.unwrap()
    }
}

#[tokio::test]
async fn in_memory_the_request_counts_as_handled() {
    let store = Store::builder().max_bytes(1 << 16).in_memory().unwrap();
    let again = service(&store, 100_000, || ()).await.twice().await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    assert!(again.body.contains("its response was not stored"), "{}", again.body);
}

/// A small one is stored whole.
#[tokio::test]
async fn a_server_that_is_out_of_memory_records_the_request() {
    for bytes in [100_000, 10] {
        let server = Arc::new(RedisServer::start().await);
        let store = patient!(server.url());
        let full = Arc::clone(&server);
        let done = move || drop(full.cli(&["CONFIG", "SET", "maxmemory", "1"]));
        let again = service(&store, bytes, done).await.twice().await;
        if bytes == 10 {
            assert_eq!((again.status, again.header("idempotency-replayed")), (StatusCode::OK, Some("?1")));
        } else {
            assert!(again.body.contains("its response was not stored"), "{}", again.body);
        }
    }
}
