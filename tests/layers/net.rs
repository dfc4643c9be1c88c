//! Sockets: a server on a free port, and clients that no proxy setting leads astray.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::Value;
use tokio::net::TcpListener;

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

pub(crate) async fn serve_with_peers(app: IntoMakeServiceWithConnectInfo<Router, SocketAddr>) -> String {
    let (listener, address) = listen().await;
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

/// Asks for one host, whichever of its processes it reaches.
pub(crate) fn client() -> reqwest::Client {
    let host = HeaderMap::from_iter([(HOST, HeaderValue::from_static("fleet.example"))]);
    reqwest::Client::builder().no_proxy().default_headers(host).build().unwrap()
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

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// GET with these header fields.
pub(crate) async fn get(url: &str, fields: &[(&str, &str)]) -> Answer {
    let mut request = client().get(url);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    Answer { status, headers, body: response.text().await.unwrap() }
}
