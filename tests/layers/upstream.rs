//! An upstream for clients to call: it counts what reaches it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::get as on_get;
use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::net::serve;

/// It says hello.
pub(crate) struct Upstream {
    pub(crate) url: String,
    requests: Arc<AtomicUsize>,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let hello = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            async { "hello" }
        };
        let url = serve(Router::new().route("/", on_get(hello))).await + "/";
        Self { url, requests }
    }

    pub(crate) fn get(&self) -> Request<String> {
        Request::get(&self.url).body(String::new()).unwrap()
    }

    /// How many requests have reached it.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// hyper-util's client, which is a service.
pub(crate) fn hyper_client() -> Client<HttpConnector, String> {
    Client::builder(TokioExecutor::new()).build_http()
}
