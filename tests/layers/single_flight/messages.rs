//! Two processes with an app behind the layer, over sockets, and what their clients receive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use futures::future::join_all;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tower_distributed::SingleFlight;
use tower_distributed::extract::shared_get;
use tower_distributed::response::{AnswerCodec, Responses};
use tower_distributed::web::single_flight;

use crate::net::serve;
use crate::single_flight::privacy::Builder;
use crate::stores::{HOUR, Stores};

/// The processes, a client, and how many requests have been handled.
pub(crate) struct Apps {
    urls: [String; 2],
    client: Client<HttpConnector, Body>,
    handled: Arc<AtomicUsize>,
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// What has been read, and whether that was all.
    pub(crate) body: Bytes,
    pub(crate) complete: bool,
}

impl Apps {
    pub(crate) async fn start(
        stores: &Stores,
        responses: Responses,
        settings: fn(Builder) -> Builder,
        answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static,
    ) -> Self {
        let handled = Arc::new(AtomicUsize::new(0));
        static APPS: AtomicUsize = AtomicUsize::new(0);
        let number = APPS.fetch_add(1, Ordering::Relaxed);
        let mut urls = Vec::new();
        for _ in 0..2 {
            let flight = settings(SingleFlight::builder(AnswerCodec).ttl(HOUR));
            let flight = flight.build(&stores.open(), "messages").unwrap();
            let (handled, answer) = (Arc::clone(&handled), answer.clone());
            let handle = async move |_: Request<Body>| {
                handled.fetch_add(1, Ordering::SeqCst);
                // The others come meanwhile.
                tokio::task::yield_now().await;
                answer()
            };
            let layer = single_flight(flight, shared_get()).capture(responses.clone());
            // Others in the same stores have other paths.
            let url = serve(Router::new().fallback(handle).layer(layer)).await;
            urls.push(format!("{url}/{number}"));
        }
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { urls: urls.try_into().unwrap(), client, handled }
    }

    pub(crate) fn handled(&self) -> usize {
        self.handled.load(Ordering::SeqCst)
    }

    /// The head of an answer of one of the processes.
    pub(crate) async fn head(&self, process: usize) -> Response<Incoming> {
        // Both are one host to their clients.
        let request = Request::get(&self.urls[process]).header("host", "fleet.example");
        self.client.request(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    /// What so many requests get, made at once and of each process in turn.
    pub(crate) async fn ask_all(&self, count: usize) -> Vec<Received> {
        join_all((0..count).map(|number| async move {
            let (parts, mut rest) = self.head(number % 2).await.into_parts();
            let (mut body, mut complete) = (Vec::new(), true);
            while let Some(frame) = rest.frame().await {
                match frame.map(http_body::Frame::into_data) {
                    Ok(Ok(data)) => body.extend_from_slice(&data),
                    Ok(Err(_trailers)) => {}
                    Err(_) => complete = false,
                }
            }
            Received { status: parts.status, headers: parts.headers, body: body.into(), complete }
        }))
        .await
    }
}
