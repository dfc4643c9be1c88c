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
use tower_distributed::response::{AnswerCodec, refuse};
use tower_distributed::web::{concurrency_limit, rw_lock, single_flight};
use tower_distributed::{RateLimitLayer, RwLock, SingleFlight, SingleFlightLayer, WaitGroup};

use crate::net::{get, serve};
use crate::stores::{HOUR, SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(
    a_rate_limit_outside_charges_each,
    a_rate_limit_inside_charges_who_leads,
    a_refusal_from_inside_is_its_callers_own,
    a_concurrency_limit_outside_or_inside,
    a_lock_inside_is_held_by_who_leads,
);

type Layer = SingleFlightLayer<
    Request<Body>,
    tower_distributed::response::Answer,
    std::convert::Infallible,
    tower_distributed::response::Responses,
    tower_distributed::response::Refuse,
>;

fn flights(stores: &Stores) -> Layer {
    let flight = SingleFlight::builder(AnswerCodec).ttl(HOUR).build(&stores.open(), "pages").unwrap();
    single_flight(flight, shared_get())
}

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

/// How many of so many requests, made at once, were answered, and how many refused with this status.
async fn ask(url: &str, count: usize, refused: StatusCode) -> (usize, usize) {
    let answers = join_all((0..count).map(|_| get(url, &[]))).await;
    let of = |status| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!(of(StatusCode::OK) + of(refused), count, "{answers:?}");
    (of(StatusCode::OK), of(refused))
}

async fn a_rate_limit_outside_charges_each(stores: Stores) {
    let handled = Arc::default();
    let limit = RateLimitLayer::new(at_most(7, &stores.open()), everything).reject_with(refuse());
    let layers = ServiceBuilder::new().layer(limit).layer(flights(&stores));
    let url = serve(app(&handled).layer(layers)).await;
    assert_eq!(ask(&url, 10, StatusCode::TOO_MANY_REQUESTS).await, (7, 3));
    assert_eq!(handled.load(Ordering::SeqCst), 1);
}

async fn a_rate_limit_inside_charges_who_leads(stores: Stores) {
    let handled = Arc::default();
    let bucket = at_most(2, &stores.open());
    let limit = RateLimitLayer::new(bucket.clone(), everything).reject_with(refuse());
    let layers = ServiceBuilder::new().layer(flights(&stores)).layer(limit);
    let url = serve(app(&handled).layer(layers)).await;
    assert_eq!(ask(&url, 20, StatusCode::TOO_MANY_REQUESTS).await, (20, 0));
    assert_eq!(handled.load(Ordering::SeqCst), 1);
    assert_eq!(bucket.peek("everything").await.unwrap().remaining(), 1);
}

/// A 429 is no answer for others: each asks for itself.
async fn a_refusal_from_inside_is_its_callers_own(stores: Stores) {
    let handled = Arc::default();
    let bucket = at_most(1, &stores.open());
    bucket.allow("everything").await.unwrap();
    let limit = RateLimitLayer::new(bucket.clone(), everything).reject_with(refuse());
    let layers = ServiceBuilder::new().layer(flights(&stores)).layer(limit);
    let url = serve(app(&handled).layer(layers)).await;
    assert_eq!(ask(&url, 10, StatusCode::TOO_MANY_REQUESTS).await, (0, 10));
    bucket.reset("everything").await.unwrap();
    assert_eq!(ask(&url, 10, StatusCode::TOO_MANY_REQUESTS).await, (10, 0));
    assert_eq!(handled.load(Ordering::SeqCst), 1);
}

/// Outside it counts who follows, inside who leads alone. The permit is held to the end of the body, which the flight has
/// read.
async fn a_concurrency_limit_outside_or_inside(stores: Stores) {
    for (permits, is_outside, path) in [(4, true, "/outside"), (1, false, "/inside")] {
        let handled = Arc::default();
        let group = WaitGroup::new(&stores.open(), &path[1..], permits).unwrap();
        let limit = concurrency_limit(group.clone(), everything);
        let flights = flights(&stores);
        let app = app(&handled);
        let app = if is_outside {
            app.layer(ServiceBuilder::new().layer(limit.max_wait(SOON)).layer(flights))
        } else {
            app.layer(ServiceBuilder::new().layer(flights).layer(limit))
        };
        let url = serve(app).await + path;
        assert_eq!(ask(&url, 20, StatusCode::SERVICE_UNAVAILABLE).await, (20, 0));
        assert_eq!(handled.load(Ordering::SeqCst), 1);
        eventually("all permits to be back", SOON, async || group.count("everything").await.unwrap() == 0)
            .await;
    }
}

async fn a_lock_inside_is_held_by_who_leads(stores: Stores) {
    let handled = Arc::default();
    let lock = RwLock::new(&stores.open(), "locks").unwrap();
    let layers = ServiceBuilder::new().layer(flights(&stores)).layer(rw_lock(lock.clone(), everything));
    let url = serve(app(&handled).layer(layers)).await;
    let writer = lock.write("everything").await.unwrap();
    assert_eq!(ask(&url, 5, StatusCode::LOCKED).await, (0, 5));
    assert!(writer.release().await.unwrap());
    assert_eq!(ask(&url, 20, StatusCode::LOCKED).await, (20, 0));
    assert_eq!(handled.load(Ordering::SeqCst), 1);
}
