//! What a limit does while the store gives no answer: three limits, one for each choice.

use std::num::NonZeroU32;

use axum::Router;
use axum::routing::get;
use tower_distributed::fleet::RefusedKeys;
use tower_distributed::{Error, Quota, Store, StoreFailure, TokenBucket, web};

/// The number of gateways.
const REPLICAS: NonZeroU32 = NonZeroU32::new(2).unwrap();

pub(crate) fn routes(store: &Store, refused: &RefusedKeys) -> Result<Router, Error> {
    let limit = |name, choice| {
        let bucket = TokenBucket::new(store, name, Quota::per_second(5).burst(10))?;
        Ok::<_, Error>(
            get(admitted).layer(
                web::rate_limit(bucket, crate::address())
                    .count_refused(refused)
                    .on_store_failure(choice),
            ),
        )
    };
    Ok(Router::new()
        // The default: 503 for every request.
        .route(
            "/policy/fail-closed",
            limit("gateway-closed", StoreFailure::FailClosed)?,
        )
        // No limit meanwhile.
        .route(
            "/policy/fail-open",
            limit("gateway-open", StoreFailure::FailOpen)?,
        )
        // Each gateway admits its share: 2.5 requests per second, 5 at once.
        .route(
            "/policy/local-share",
            limit(
                "gateway-share",
                StoreFailure::LocalShare { replicas: REPLICAS },
            )?,
        ))
}

async fn admitted() -> &'static str {
    "admitted\n"
}
