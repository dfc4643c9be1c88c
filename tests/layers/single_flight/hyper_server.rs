//! A hyper server through hyper-util, with bodies of its own choice, over HTTP/1 and HTTP/2.

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
use tower_distributed::SingleFlight;
use tower_distributed::extract::{SharedGet, shared_get};
use tower_distributed::response::{Answer, AnswerCodec};
use tower_distributed::web::single_flight;

use crate::net::{get, serve_each as serve};
use crate::stores::{HOUR, Stores, on_each_store};

on_each_store!(mapped_bodies, many_at_once_over_http2);

fn flight(stores: &Stores) -> SingleFlight<Answer> {
    SingleFlight::builder(AnswerCodec).ttl(HOUR).build(&stores.open(), "pages").unwrap()
}

/// Bodies whose data are no `Bytes` are made such.
async fn mapped_bodies(stores: Stores) {
    let hello =
        service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new("hello".to_owned())));
    let layers = ServiceBuilder::new().layer(single_flight(flight(&stores), shared_get())).map_response(
        |response: Response<String>| response.map(|body| body.map_frame(|frame| frame.map_data(Bytes::from))),
    );
    let url = serve(layers.service(hello)).await;
    for answer in join_all((0..5).map(|_| get(&url, &[]))).await {
        assert_eq!(answer.body, "hello");
    }
}

async fn many_at_once_over_http2(stores: Stores) {
    let handled = Arc::new(AtomicUsize::new(0));
    let app = || {
        let counted = Arc::clone(&handled);
        let service = service_fn(move |request: Request<Incoming>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(request.uri().path().to_owned()))) }
        });
        let by = |request: &Request<Incoming>| request.uri().path().to_owned();
        // Both are one host to their clients.
        let host = |mut request: Request<Incoming>| {
            *request.uri_mut() = request.uri().path().parse().unwrap();
            request
        };
        let layers =
            ServiceBuilder::new().map_request(host).layer(single_flight(flight(&stores), SharedGet::new(by)));
        serve(layers.service(service))
    };
    let (here, there) = (app().await, app().await);
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<String>();
    let calls = (0..60).map(|number| {
        let (client, path) = (client.clone(), format!("/{}", number % 3));
        let url = format!("{}{path}", if number % 2 == 0 { &here } else { &there });
        async move {
            let response = client.get(url.parse().unwrap()).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), path);
        }
    });
    join_all(calls).await;
    assert_eq!(handled.load(Ordering::SeqCst), 3);
}
