//! A limit per user, who was authenticated by a middleware outside of it.

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use axum::{Router, http::StatusCode};
use tower_distributed::extract::extension;
use tower_distributed::{Quota, Store, TokenBucket, web};

use crate::newcomer::net::{client, send, serve};

#[derive(Clone)]
struct User(u64);

async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let token = request.headers().get("authorization").and_then(|token| token.to_str().ok());
    let user = token.and_then(|token| token.strip_prefix("Bearer user-")?.parse().ok());
    request.extensions_mut().insert(User(user.ok_or(StatusCode::UNAUTHORIZED)?));
    Ok(next.run(request).await)
}

#[tokio::test]
async fn program() {
    let bucket = TokenBucket::new(&Store::in_memory(), "users", Quota::per_hour(1)).unwrap();
    let app = Router::new().route("/", get(async || "hello"));
    // user
    let user = extension(|user: &User| user.0);
    let app = app.layer(web::rate_limit(bucket, user)).layer(from_fn(authenticate));
    // end
    let url = serve(app).await;
    let status = async |token| send(client().get(&url).bearer_auth(token)).await;
    assert_eq!((status("user-1").await, status("user-1").await, status("user-2").await), (200, 429, 200));
    assert_eq!(status("made-up").await, 401);
}

/// With the two layers in the wrong order nothing passes.
#[tokio::test]
async fn program_in_the_wrong_order() {
    let bucket = TokenBucket::new(&Store::in_memory(), "users", Quota::per_hour(1)).unwrap();
    let limit = web::rate_limit(bucket, extension(|user: &User| user.0));
    let app = Router::new().route("/", get(async || "hello")).layer(from_fn(authenticate)).layer(limit);
    let url = serve(app).await;
    assert_eq!(send(client().get(&url).bearer_auth("user-1")).await, 500);
}
