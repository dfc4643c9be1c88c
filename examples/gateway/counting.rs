//! One limit, counted in two ways: in the store for both gateways together, and by each gateway alone.

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use tower_distributed::{Error, Quota, Store, TokenBucket, web};

/// Requests per second.
pub(crate) const RATE: u32 = 5;

pub(crate) fn routes(store: &Store, alone: &Store) -> Result<Router, Error> {
    let limit = |store| {
        // Two at once, so that each second has as many as the rate says.
        let bucket = TokenBucket::new(store, "gateway-counted", Quota::per_second(RATE).burst(2))?;
        Ok::<_, Error>(get(admitted).layer(web::rate_limit(bucket, |_: &Request| "all")))
    };
    Ok(Router::new()
        .route("/counted/together", limit(store)?)
        .route("/counted/alone", limit(alone)?))
}

async fn admitted() -> &'static str {
    "admitted\n"
}
