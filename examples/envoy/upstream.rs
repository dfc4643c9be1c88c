//! A service behind Envoy that limits its other callers by the same buckets as the edge.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1/ cargo run --example envoy_upstream
//! ```
//!
//! `/` is for requests that Envoy has admitted; `/internal` is for callers that do not come through Envoy.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use tokio::net::TcpListener;
use tower_distributed::fleet::FleetTable;
use tower_distributed::{Error, QuotaTable, Quotas, Store, TokenBucket, web};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::var("PORT").map_or(Ok(8080), |port| port.parse())?;
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    println!(
        "listening on http://{}, state: {store}",
        listener.local_addr()?
    );
    axum::serve(listener, app(&store)?).await?;
    Ok(())
}

fn app(store: &Store) -> Result<Router, Error> {
    // The name and the key of the rule `tenant` of the domain `edge`, as `--check` lists them.
    let bucket = TokenBucket::new(store, "edge/tenant", "20/s")?;
    // The quotas in the rules of the edge, which follow the changes of its files.
    let rules = FleetTable::new(store, "edge", QuotaTable::new([("tenant", "20/s")])?)?;
    let limit =
        web::rate_limit(bucket, tenant).quotas(move |request: &Request| quotas(&rules, request));
    Ok(Router::new()
        .route(
            "/internal",
            get(async || "hello from inside\n").layer(limit),
        )
        .fallback(async || "hello\n"))
}

/// A request without a tenant is refused with 400. The key is the value itself, as that of Envoy's descriptor.
fn tenant(request: &Request) -> Result<String, Error> {
    let value = request
        .headers()
        .get("x-tenant")
        .and_then(|value| value.to_str().ok());
    value
        .map(str::to_owned)
        .ok_or_else(|| Error::bad_request("the header field x-tenant is missing"))
}

/// The rule for this tenant, or the one for all.
fn quotas(rules: &FleetTable, request: &Request) -> Option<Quotas> {
    let rules = rules.current();
    let own = tenant(request)
        .ok()
        .and_then(|tenant| rules.get(&format!("tenant={tenant}")).cloned());
    own.or_else(|| rules.get("tenant").cloned())
}
