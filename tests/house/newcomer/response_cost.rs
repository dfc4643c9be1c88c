//! Requests that cost as many tokens as their responses have bytes.

use axum::Router;
use axum::body::HttpBody as _;
use axum::response::Response;
use axum::routing::get;
use tower_distributed::extract::client_ip;
use tower_distributed::{Quota, Store, TokenBucket, web};

use crate::newcomer::net::{client, send, serve};

#[tokio::test]
async fn program() {
    let bucket = TokenBucket::new(&Store::in_memory(), "bytes", Quota::per_hour(1000)).unwrap();
    let app = Router::new().route("/", get(async || "x".repeat(1500)));
    // user
    let bytes = |response: &Response| response.body().size_hint().lower().try_into().unwrap_or(u32::MAX);
    let app = app.layer(web::rate_limit(bucket, client_ip()).cost_of_response(bytes));
    // end
    let url = serve(app).await;
    assert_eq!(send(client().get(&url)).await, 200);
    assert_eq!(send(client().get(&url)).await, 429, "500 bytes of debt");
}
