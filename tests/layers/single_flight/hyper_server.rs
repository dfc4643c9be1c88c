//! A hyper server through hyper-util, with bodies of its own choice, over HTTP/2.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower::{ServiceBuilder, service_fn};
use tower_distributed::extract::SharedGet;
use tower_distributed::web::single_flight;

use crate::flights::pages;
use crate::net::serve_each as serve;
use crate::stores::{Stores, on_each_store};

on_each_store!(many_at_once_over_http2);

/// A body of several frames.
fn long(path: &str) -> String {
    path.repeat(50_000)
}

async fn many_at_once_over_http2(stores: Stores) {
    let handled = Arc::new(AtomicUsize::new(0));
    let app = || {
        let counted = Arc::clone(&handled);
        let service = service_fn(move |request: Request<Incoming>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(long(
                    request.uri().path(),
                ))))
            }
        });
        let by = |request: &Request<Incoming>| request.uri().path().to_owned();
        // Both are one host to their clients.
        let host = |mut request: Request<Incoming>| {
            *request.uri_mut() = request.uri().path().parse().unwrap();
            request
        };
        let layers = ServiceBuilder::new()
            .map_request(host)
            .layer(single_flight(pages(&stores), SharedGet::new(by)));
        serve(layers.service(service))
    };
    let (here, there) = (app().await, app().await);
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<String>();
    let calls = (0..60).map(|number| {
        let (client, path) = (client.clone(), format!("/{}", number % 3));
        let url = format!("{}{path}", if number % 2 == 0 { &here } else { &there });
        async move {
            let response = client.get(url.parse().unwrap()).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert!(
                response.into_body().collect().await.unwrap().to_bytes() == long(&path),
                "{path}"
            );
        }
    });
    join_all(calls).await;
    assert_eq!(handled.load(Ordering::SeqCst), 3);
}
