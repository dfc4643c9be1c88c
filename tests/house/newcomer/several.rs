//! Limits per client, per tenant, and for all, charged together.

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use tower_distributed::extract::{client_ip, header};
use tower_distributed::{Error, Quota, Store, TokenBucket, TokenBuckets, web};

use crate::newcomer::net::{client, send, serve};

fn app(clients: TokenBucket, tenants: TokenBucket, all: TokenBucket) -> Result<Router, Error> {
    let app = Router::new().route("/", get(async || "hello"));
    // user
    let limits = TokenBuckets::new([clients, tenants, all])?;
    let keys = (client_ip(), header("x-tenant")?, |_: &Request| "all");
    let app = app.layer(web::rate_limits(limits, keys));
    // end
    Ok(app)
}

#[tokio::test]
async fn program() {
    let store = Store::in_memory();
    let bucket = |name, most| TokenBucket::new(&store, name, Quota::per_hour(most)).unwrap();
    let url = serve(app(bucket("clients", 100), bucket("tenants", 1), bucket("all", 2)).unwrap()).await;
    let status = async |tenant| send(client().get(&url).header("x-tenant", tenant)).await;
    assert_eq!((status("acme").await, status("acme").await), (200, 429));
    assert_eq!(status("other").await, 200, "what was refused was charged to no limit");
    assert_eq!(status("third").await, 429);
}
