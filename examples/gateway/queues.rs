//! Two limits that differ in their order only: one serves calls as they come, the other serves the tenants in turn.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::HeaderName;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use axum::{Extension, Router};
use tower_distributed::wait_group::WaitGroupBuilder;
use tower_distributed::{Error, Key, Store, WaitGroup, web};

use crate::page::board::Seat;
use crate::page::tenants::{self, Call, Queue};

/// The permits of each limit.
pub(crate) const PERMITS: u32 = 4;
/// Names the tenant. What is no example takes it from credentials that it has checked.
pub(crate) const TENANT: HeaderName = HeaderName::from_static("x-tenant");

/// The limit in the order of arrival.
pub(crate) fn fifo(store: &Store) -> Result<WaitGroup, Error> {
    calls().build(store, "gateway-fifo")
}

/// The fair limit.
pub(crate) fn fair(store: &Store) -> Result<WaitGroup, Error> {
    calls().fair().build(store, "gateway-fair")
}

fn calls() -> WaitGroupBuilder {
    WaitGroup::builder(PERMITS).max_waiters(200)
}

pub(crate) fn routes(store: &Store, seat: &Seat) -> Result<Router, Error> {
    let one_queue = |_: &Request| "all";
    let (fifo, fair) = (fifo(store)?, fair(store)?);
    let max_wait = Duration::from_secs(10);
    let fifo = web::concurrency_limit(fifo, one_queue).max_wait(max_wait);
    let fair = web::concurrency_limit(fair, one_queue)
        .max_wait(max_wait)
        .fair_by(tenant);
    let follow = |queue: &Queue| from_fn_with_state(queue.clone(), tenants::follow);
    Ok(Router::new()
        .route(
            "/queue/fifo",
            get(call).layer(fifo).layer(follow(&seat.queues.fifo)),
        )
        .route(
            "/queue/fair",
            get(call).layer(fair).layer(follow(&seat.queues.fair)),
        ))
}

/// Calls without the header are one tenant.
fn tenant(request: &Request) -> Key {
    request
        .headers()
        .get(TENANT)
        .map_or(&[][..], |tenant| tenant.as_bytes())
        .into()
}

/// 150 milliseconds of work.
async fn call(Extension(call): Extension<Arc<Call>>) -> String {
    let turns = call.work();
    tokio::time::sleep(Duration::from_millis(150)).await;
    format!("waited for {turns} other calls\n")
}
