//! Limits by address on an axum server: the peer's, and the client's behind proxies.

use std::net::IpAddr;

use axum::Router;
use axum::routing::get as on_get;
use http::StatusCode;
use tower_distributed::RateLimitLayer;
use tower_distributed::extract::{ClientIp, Extractor, client_ip};
use tower_distributed::response::refuse;

use crate::net::{get, serve_with_peers};
use crate::stores::{Stores, at_most, on_each_store};

on_each_store!(
    each_peer_has_its_own_limit,
    forged_fields_do_not_help_behind_a_proxy,
    without_proxies_the_field_is_not_read,
);

async fn serve_by_client(stores: &Stores, by: Extractor<ClientIp>) -> String {
    let layer = RateLimitLayer::new(at_most(1, &stores.open()), by).reject_with(refuse());
    let app = Router::new().route("/", on_get(async || "hello")).layer(layer);
    serve_with_peers(app.into_make_service_with_connect_info()).await
}

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

async fn forged_fields_do_not_help_behind_a_proxy(stores: Stores) {
    let url = serve_by_client(&stores, client_ip().trust_hops(1).unwrap()).await;
    // What the client sends, and the one proxy's line at the end.
    let status = async |sent: &str, seen: &str| {
        get(&url, &[("x-forwarded-for", sent), ("x-forwarded-for", seen)]).await.status
    };
    assert_eq!(status("6.6.6.1", "1.1.1.1").await, StatusCode::OK);
    assert_eq!(status("6.6.6.2", "1.1.1.1").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status("6.6.6.3, 6.6.6.4", "1.1.1.1").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status("garbage", "1.1.1.1").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status("1.1.1.1", "2.2.2.2").await, StatusCode::OK, "somebody else");
    let joined = get(&url, &[("x-forwarded-for", "6.6.6.5, 1.1.1.1")]).await.status;
    assert_eq!(joined, StatusCode::TOO_MANY_REQUESTS, "a proxy that appends to the line");
}

async fn without_proxies_the_field_is_not_read(stores: Stores) {
    let url = serve_by_client(&stores, client_ip()).await;
    assert_eq!(get(&url, &[("x-forwarded-for", "1.1.1.1")]).await.status, StatusCode::OK);
    let again = get(&url, &[("x-forwarded-for", "2.2.2.2")]).await.status;
    assert_eq!(again, StatusCode::TOO_MANY_REQUESTS);
}
