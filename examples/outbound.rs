//! An outbound client that keeps to an upstream's limit, and hears when the upstream says "too many".
//!
//! The limit is per host and waits its turn; once the upstream answers 429 with Retry-After, all processes
//! that share the store leave it alone for so long. Here the upstream is a small server of our own.
//!
//! ```text
//! cargo run --example outbound
//! ```

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::IntoResponse;
use axum::routing::get;
use reqwest::{Client, Method, Request, Response, Url};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_distributed::response::RetryAfter;
use tower_distributed::{Key, Quota, RateLimitLayer, Store, TokenBucket};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let upstream = start_upstream().await?;
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let bucket = TokenBucket::new(&store, "outbound", Quota::per_second(10).burst(3))?;
    let per_host = RateLimitLayer::new(bucket, |request: &Request| {
        request.url().host_str().map(Key::from)
    })
    .max_wait(Duration::from_secs(10))
    .block_on_response(|response: &Response| {
        RetryAfter::default().read(response.status(), response.headers())
    });
    let mut client = ServiceBuilder::new().layer(per_host).service(Client::new());

    let began = Instant::now();
    for _ in 0..8 {
        let response = client
            .ready()
            .await?
            .call(Request::new(Method::GET, upstream.clone()))
            .await?;
        println!(
            "after {:>4} ms: {}",
            began.elapsed().as_millis(),
            response.status()
        );
    }
    Ok(())
}

/// Answers, but for the fifth request, which is one too many.
async fn start_upstream() -> Result<Url, BoxError> {
    let seen = Arc::new(AtomicU32::new(0));
    let answer = async move || {
        if seen.fetch_add(1, Ordering::Relaxed) == 4 {
            (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")]).into_response()
        } else {
            "hello".into_response()
        }
    };
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/", listener.local_addr()?).parse()?;
    let app = Router::new().route("/", get(answer));
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}
