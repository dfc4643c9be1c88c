//! An upstream for clients to call: it counts what reaches it.

use std::future::pending;

use axum::Router;
use axum::routing::get as on_get;
use http::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::net::serve;
use crate::stores::SOON;

/// `/` says hello, `/fail` is a 500, `/hang` never answers.
pub(crate) struct Upstream {
    pub(crate) url: String,
    requests: watch::Sender<usize>,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let requests = watch::Sender::new(0);
        let counted = requests.clone();
        let app = Router::new()
            .route("/", on_get(async || "hello"))
            .route("/fail", on_get(async || StatusCode::INTERNAL_SERVER_ERROR))
            .route("/hang", on_get(pending::<StatusCode>))
            .layer(axum::middleware::from_fn(
                move |request: axum::extract::Request, next: axum::middleware::Next| {
                    counted.send_modify(|requests| *requests += 1);
                    next.run(request)
                },
            ));
        Self { url: serve(app).await, requests }
    }

    pub(crate) fn get(&self, path: &str) -> Request<String> {
        Request::get(self.at(path)).body(String::new()).unwrap()
    }

    /// The URL of a path.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// How many requests have reached it.
    pub(crate) fn requests(&self) -> usize {
        *self.requests.borrow()
    }

    /// Until so many requests have reached it.
    pub(crate) async fn reached_by(&self, wanted: usize) {
        let mut requests = self.requests.subscribe();
        let reached = requests.wait_for(|&requests| requests >= wanted);
        assert!(timeout(SOON, reached).await.is_ok(), "{} of {wanted} requests", self.requests());
    }
}

/// hyper-util's client, which is a service.
pub(crate) fn hyper_client() -> Client<HttpConnector, String> {
    Client::builder(TokioExecutor::new()).build_http()
}
