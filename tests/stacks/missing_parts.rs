//! A client that leaves out a part of its key does not escape the limit.

use std::net::IpAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::get as on_get;
use http::StatusCode;
use tower::ServiceExt as _;
use tower_distributed::extract::{client_ip, header, host, query};
use tower_distributed::{KeyExtractor, web};

use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(no_request_passes_without_a_part_of_its_key);

const REQUESTS: usize = 1000;

/// The statuses of requests that have neither a query nor a header field.
async fn statuses(
    stores: &Stores,
    key: impl KeyExtractor<Request> + Send + Sync + 'static,
) -> Vec<StatusCode> {
    let limit = web::rate_limit(at_most(5, &stores.open()), key);
    let app = Router::new().route("/", on_get(async || "hello")).layer(limit);
    let mut statuses = Vec::new();
    for _ in 0..REQUESTS {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(IpAddr::from([192, 0, 2, 7]));
        statuses.push(app.clone().oneshot(request).await.unwrap().status());
    }
    statuses
}

async fn no_request_passes_without_a_part_of_its_key(stores: Stores) {
    let refused = vec![StatusCode::BAD_REQUEST; REQUESTS];
    assert_eq!(statuses(&stores, query("tenant")).await, refused);
    assert_eq!(statuses(&stores, host()).await, refused);
    assert_eq!(statuses(&stores, client_ip().and(header("x-tenant").unwrap())).await, refused);
    assert_eq!(statuses(&stores, (client_ip(), header("x-tenant").unwrap())).await, refused);
}
