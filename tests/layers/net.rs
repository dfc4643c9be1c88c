//! Sockets: a server on a free port, and clients that no proxy setting leads astray.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use reqwest::RequestBuilder;
use serde_json::Value;
use tokio::net::TcpListener;
use tower::{BoxError, Service, ServiceBuilder};

pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Serves until the test ends; returns the base URL.
pub(crate) async fn serve(app: Router) -> String {
    let (listener, address) = listen().await;
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

/// Serves every connection with a clone of the service, by hyper. The service finds the peer's address in the request.
pub(crate) async fn serve_each<S, B>(service: S) -> String
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + Sync + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, from)) = listener.accept().await {
            let service = ServiceBuilder::new()
                .map_request(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(from);
                    request
                })
                .service(service.clone());
            tokio::spawn(async move {
                let (server, service) = (
                    auto::Builder::new(TokioExecutor::new()),
                    TowerToHyperService::new(service),
                );
                let _ = server
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    format!("http://{address}")
}

/// Asks for one host, whichever of its processes it reaches.
pub(crate) fn client() -> reqwest::Client {
    let host = HeaderMap::from_iter([(HOST, HeaderValue::from_static("fleet.example"))]);
    reqwest::Client::builder()
        .no_proxy()
        .default_headers(host)
        .build()
        .unwrap()
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Of a refusal: the status; the seconds in Retry-After; the title of the problem, whose status is the same.
    pub(crate) fn problem(&self) -> (u16, Option<u64>, String) {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16());
        let after = self
            .header("retry-after")
            .map(|after| after.parse().unwrap());
        (
            self.status.as_u16(),
            after,
            problem["title"].as_str().unwrap().to_owned(),
        )
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Asks with these header fields.
pub(crate) async fn ask(request: RequestBuilder, fields: &[(&str, &str)]) -> Answer {
    let request = fields.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    Answer {
        status,
        headers,
        body: response.text().await.unwrap(),
    }
}

pub(crate) async fn get(url: &str, fields: &[(&str, &str)]) -> Answer {
    ask(client().get(url), fields).await
}
