//! Responses through the layer, in two axum apps with one store. For the flights, the apps are two processes.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::response::IntoResponse;
use futures::future::join_all;
use tower::ServiceExt as _;

use super::*;
use crate::extract::shared_get;
use crate::response::AnswerCodec;
use crate::web::single_flight;
use crate::{SingleFlight, Store};

/// The two apps, and how many requests they have handled.
struct Apps([Router; 2], Arc<AtomicUsize>);

impl Apps {
    fn new<R: IntoResponse + Send + 'static>(handle: fn(Request<axum::body::Body>) -> R) -> Self {
        let (store, handled) = (Store::in_memory(), Arc::new(AtomicUsize::new(0)));
        let app = || {
            let flight = SingleFlight::builder(AnswerCodec).build(&store, "test").unwrap();
            let handled = Arc::clone(&handled);
            let handler = async move |request| {
                handled.fetch_add(1, Ordering::SeqCst);
                // The other requests of the flight arrive meanwhile.
                tokio::task::yield_now().await;
                handle(request)
            };
            Router::new().route("/", axum::routing::get(handler)).layer(single_flight(flight, shared_get()))
        };
        Self([app(), app()], handled)
    }

    /// Returns the responses to three requests to each app, and how many of the requests were handled.
    async fn ask(&self, fields: &[(&'static str, &'static str)]) -> (Vec<Response<String>>, usize) {
        let before = self.1.load(Ordering::SeqCst);
        let calls = (0..6).map(|number| {
            let request = with(Request::new(axum::body::Body::empty()), Request::headers_mut, fields);
            self.0[number % 2].clone().oneshot(request)
        });
        let mut received = Vec::new();
        for response in join_all(calls).await {
            let (parts, body) = response.unwrap().into_parts();
            let body = text(Response::new(body)).await;
            received.push(Response::from_parts(parts, body));
        }
        (received, self.1.load(Ordering::SeqCst) - before)
    }
}

#[tokio::test]
async fn one_is_handled_and_all_get_its_response() {
    let apps = Apps::new(|_| (StatusCode::NOT_FOUND, [("x-served-by", "one")], "nothing here"));
    let (received, handled) = apps.ask(&[]).await;
    assert_eq!(handled, 1);
    for response in received {
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(response.headers()["x-served-by"], "one");
        assert_eq!(response.headers()["content-length"], "12");
        assert_eq!(response.body(), "nothing here");
    }
}

#[tokio::test]
async fn head_and_get_are_each_their_own() {
    let apps = Apps::new(|_| "body");
    assert_eq!(apps.ask(&[]).await.1, 1);
    for app in &apps.0 {
        let head = Request::head("/").body(axum::body::Body::empty()).unwrap();
        let response = app.clone().oneshot(head).await.unwrap();
        assert_eq!(response.headers()["content-length"], "4");
        assert_eq!(text(response).await, "");
    }
    assert_eq!(apps.1.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_is_for_one_client_reaches_one_client() {
    let apps = Apps::new(|_| {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        ([("set-cookie", format!("session={}", NEXT.fetch_add(1, Ordering::SeqCst)))], "welcome")
    });
    let (received, handled) = apps.ask(&[]).await;
    assert_eq!(handled, 6);
    let sessions: std::collections::HashSet<_> =
        received.iter().map(|response| response.headers()["set-cookie"].clone()).collect();
    assert_eq!(sessions.len(), 6);
}
