//! A limit per IPv4 address or IPv6 /64 network, behind a proxy.

use axum::Router;
use axum::routing::get;
use tower_distributed::extract::client_ip;
use tower_distributed::{Error, Quota, Store, TokenBucket, web};

use crate::newcomer::net::{client, send, serve};

fn app(bucket: TokenBucket) -> Result<Router, Error> {
    let app = Router::new().route("/", get(async || "hello"));
    // user
    let client = client_ip().trust(["127.0.0.0/8"])?;
    let app = app.layer(web::rate_limit(bucket, client));
    // end
    Ok(app)
}

#[tokio::test]
async fn program() {
    let bucket = TokenBucket::new(&Store::in_memory(), "clients", Quota::per_hour(1)).unwrap();
    let url = serve(app(bucket).unwrap()).await;
    let status = async |from| send(client().get(&url).header("x-forwarded-for", from)).await;
    assert_eq!(status("2001:db8:1:2::3").await, 200);
    assert_eq!(status("2001:db8:1:2:ffff::4").await, 429, "of the same network");
    assert_eq!(status("6.6.6.6, 2001:db8:1:2::5").await, 429, "a forged entry");
    assert_eq!(status("203.0.113.7").await, 200);
}
