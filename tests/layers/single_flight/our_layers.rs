//! With our other layers, outside and inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use futures::future::join_all;
use http::{Request, StatusCode};
use tower::ServiceBuilder;
use tower_distributed::extract::shared_get;
use tower_distributed::response::refuse;
use tower_distributed::web::{concurrency_limit, single_flight};
use tower_distributed::{RateLimitLayer, WaitGroup};

use crate::flights::pages;
use crate::net::{get, serve};
use crate::stores::{SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(a_rate_limit_inside_charges_who_leads, a_concurrency_limit_outside_or_inside);

fn everything(_: &Request<Body>) -> &'static str {
    "everything"
}

fn app(handled: &Arc<AtomicUsize>) -> Router {
    let handled = Arc::clone(handled);
    let handle = async move || {
        handled.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        "hello"
    };
    Router::new().fallback_service(on_get(handle))
}

/// Many requests, made at once, are all answered with this status.
async fn all_get(url: &str, status: StatusCode) {
    for answer in join_all((0..20).map(|_| get(url, &[]))).await {
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

/// A 429 is no answer for others: each asks for itself.
async fn a_rate_limit_inside_charges_who_leads(stores: Stores) {
    let handled = Arc::default();
    let bucket = at_most(2, &stores.open());
    bucket.allow_n("everything", 2).await.unwrap();
    let flights = single_flight(pages(&stores), shared_get());
    let limit = RateLimitLayer::new(bucket.clone(), everything).reject_with(refuse());
    let layers = ServiceBuilder::new().layer(flights).layer(limit);
    let url = serve(app(&handled).layer(layers)).await;
    all_get(&url, StatusCode::TOO_MANY_REQUESTS).await;
    bucket.reset("everything").await.unwrap();
    all_get(&url, StatusCode::OK).await;
    assert_eq!(handled.load(Ordering::SeqCst), 1);
    assert_eq!(bucket.peek("everything").await.unwrap().remaining(), 1);
}

/// Outside it counts who follows, inside who leads alone. The permit is held to the end of the body, which the flight has
/// read.
async fn a_concurrency_limit_outside_or_inside(stores: Stores) {
    for (permits, is_outside, path) in [(4, true, "/outside"), (1, false, "/inside")] {
        let handled = Arc::default();
        let group = WaitGroup::new(&stores.open(), &path[1..], permits).unwrap();
        let limit = concurrency_limit(group.clone(), everything);
        let flights = single_flight(pages(&stores), shared_get());
        let app = app(&handled);
        let app = if is_outside {
            app.layer(ServiceBuilder::new().layer(limit.max_wait(SOON)).layer(flights))
        } else {
            app.layer(ServiceBuilder::new().layer(flights).layer(limit))
        };
        all_get(&(serve(app).await + path), StatusCode::OK).await;
        assert_eq!(handled.load(Ordering::SeqCst), 1);
        eventually("all permits to be back", SOON, async || group.count("everything").await.unwrap() == 0)
            .await;
    }
}
