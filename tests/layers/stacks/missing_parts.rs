//! A client that leaves out a part of its key does not escape the limit.

use std::net::IpAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::get as on_get;
use http::StatusCode;
use tower::ServiceExt as _;
use tower_distributed::extract::{client_ip, header, host, query};
use tower_distributed::{KeyExtractor, Store, web};

use crate::net::{get, serve};
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

/// The body of a refusal is JSON, whatever the name of the part.
#[tokio::test]
async fn the_response_names_the_part() {
    for (key, part) in [(query("tenant"), "tenant"), (query("a\"b\\c\n"), "a\"b\\c\n")] {
        let limit = web::rate_limit(at_most(5, &Store::in_memory()), key);
        let url = serve(Router::new().route("/", on_get(async || "hello")).layer(limit)).await;
        let refused = get(&url, &[]).await;
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        assert_eq!(refused.header("retry-after"), None);
        assert_eq!(refused.json()["detail"], format!("the query parameter {part} is missing"));
        assert_eq!(get(&format!("{url}?tenant=a&a%22b%5Cc%0A=b"), &[]).await.status, StatusCode::OK);
    }
}

async fn no_request_passes_without_a_part_of_its_key(stores: Stores) {
    let refused = vec![StatusCode::BAD_REQUEST; REQUESTS];
    assert_eq!(statuses(&stores, query("tenant")).await, refused);
    assert_eq!(statuses(&stores, host()).await, refused);
    assert_eq!(statuses(&stores, client_ip().and(header("x-tenant").unwrap())).await, refused);
    assert_eq!(statuses(&stores, (client_ip(), header("x-tenant").unwrap())).await, refused);
}
