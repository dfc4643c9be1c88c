//! Limits by the peer's address on an axum server.

use std::net::IpAddr;

use axum::Router;
use axum::routing::get as on_get;
use http::StatusCode;
use tower_distributed::RateLimitLayer;
use tower_distributed::extract::client_ip;
use tower_distributed::response::refuse;

use crate::net::serve_with_peers;
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(each_peer_has_its_own_limit);

async fn each_peer_has_its_own_limit(stores: Stores) {
    let layer = RateLimitLayer::new(at_most(1, &stores.open()), client_ip()).reject_with(refuse());
    let app = Router::new().route("/", on_get(async || "hello")).layer(layer);
    let url = serve_with_peers(app.into_make_service_with_connect_info()).await;
    let status = async |from: [u8; 4]| {
        let client = reqwest::Client::builder().no_proxy().local_address(IpAddr::from(from));
        client.build().unwrap().get(&url).send().await.unwrap().status()
    };
    assert_eq!(status([127, 0, 0, 1]).await, StatusCode::OK);
    assert_eq!(status([127, 0, 0, 1]).await, StatusCode::TOO_MANY_REQUESTS, "from another port");
    assert_eq!(status([127, 0, 0, 2]).await, StatusCode::OK);
    assert_eq!(status([127, 0, 0, 2]).await, StatusCode::TOO_MANY_REQUESTS);
}
