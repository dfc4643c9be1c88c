//! Among tower's own layers: they see its readiness, its delays and its errors, and it sees theirs.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_distributed::{DedupeLayer, RefusalKind};
use tower_http::trace::TraceLayer;

use crate::items::{becomes_free, claim, dedupe, is_handled, kind};
use crate::stores::{HOUR, Stores, on_each_store};
use crate::upstream::{Again, Upstream, hyper_client};

on_each_store!(
    in_timeout,
    around_timeout,
    in_retry,
    around_retry,
    in_load_shed,
    around_load_shed,
    in_buffer,
    around_buffer,
    in_trace,
    around_trace,
);

const SHORT: Duration = Duration::from_millis(50);

fn path(request: &Request<String>) -> String {
    request.uri().path().to_owned()
}

/// Every 2xx counts as handled.
macro_rules! once {
    ($stores:expr) => {
        DedupeLayer::new(dedupe(&$stores.open()), path).success(is_good::<_, _>)
    };
}

fn is_good<B, E>(outcome: &Result<Response<B>, E>) -> bool {
    outcome.as_ref().is_ok_and(|response| response.status().is_success())
}

async fn in_timeout(stores: Stores) {
    let upstream = Upstream::start().await;
    let other = claim(&stores, "/").await;
    let layer = once!(stores).max_wait(HOUR);
    let service = ServiceBuilder::new().timeout(SHORT).layer(layer).service(hyper_client());
    assert!(service.clone().oneshot(upstream.get("/")).await.unwrap_err().is::<Elapsed>());
    assert!(other.release().await.unwrap());
    becomes_free(&stores, "/").await;
    assert_eq!(upstream.requests(), 0);
    assert!(service.oneshot(upstream.get("/hang")).await.unwrap_err().is::<Elapsed>());
    becomes_free(&stores, "/hang").await;
}

async fn around_timeout(stores: Stores) {
    let upstream = Upstream::start().await;
    let service = ServiceBuilder::new().layer(once!(stores)).timeout(SHORT).service(hyper_client());
    assert!(service.oneshot(upstream.get("/hang")).await.unwrap_err().is::<Elapsed>());
    assert_eq!(is_handled(&stores, "/hang").await, Some(false), "given back before anybody hears of it");
}

/// No attempt meets the claim of the one before.
async fn in_retry(stores: Stores) {
    let upstream = Upstream::start().await;
    let service = ServiceBuilder::new().retry(Again(9)).layer(once!(stores)).service(hyper_client());
    let response = service.oneshot(upstream.get("/fail")).await.unwrap();
    assert_eq!((response.status(), upstream.requests()), (StatusCode::INTERNAL_SERVER_ERROR, 10));
    becomes_free(&stores, "/fail").await;
}

async fn around_retry(stores: Stores) {
    let upstream = Upstream::start().await;
    let service = ServiceBuilder::new().layer(once!(stores)).retry(Again(9)).service(hyper_client());
    let response = service.oneshot(upstream.get("/fail")).await.unwrap();
    assert_eq!((response.status(), upstream.requests()), (StatusCode::INTERNAL_SERVER_ERROR, 10));
    becomes_free(&stores, "/fail").await;
}

async fn in_load_shed(stores: Stores) {
    let layer = ServiceBuilder::new().load_shed().layer(once!(stores)).concurrency_limit(1);
    is_shed(stores, layer.service(hyper_client())).await;
}

async fn around_load_shed(stores: Stores) {
    let layer = ServiceBuilder::new().layer(once!(stores)).load_shed().concurrency_limit(1);
    is_shed(stores, layer.service(hyper_client())).await;
}

/// What is shed was not handled.
async fn is_shed<S>(stores: Stores, service: S)
where
    S: Service<Request<String>, Response = Response<Incoming>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    let upstream = Upstream::start().await;
    let hanging = tokio::spawn(service.clone().oneshot(upstream.get("/hang")));
    upstream.reached_by(1).await;
    let error = service.clone().oneshot(upstream.get("/")).await.unwrap_err();
    assert!(error.is::<Overloaded>(), "{error}");
    assert_eq!(is_handled(&stores, "/").await, Some(false));
    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
    becomes_free(&stores, "/hang").await;
    assert_eq!(service.oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
}

/// Handled once, then a duplicate; refused while it is in flight, and free when whoever sent it is gone.
async fn is_once<S, B>(stores: Stores, service: S)
where
    S: Service<Request<String>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let upstream = Upstream::start().await;
    assert_eq!(service.clone().oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
    let refused = |outcome: Result<Response<B>, BoxError>| kind(&*outcome.err().unwrap()).unwrap();
    assert_eq!(refused(service.clone().oneshot(upstream.get("/")).await), RefusalKind::Duplicate);
    let hanging = tokio::spawn(service.clone().oneshot(upstream.get("/hang")));
    upstream.reached_by(2).await;
    assert_eq!(refused(service.clone().oneshot(upstream.get("/hang")).await), RefusalKind::InFlight);
    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
    becomes_free(&stores, "/hang").await;
    assert_eq!(upstream.requests(), 2);
}

async fn in_buffer(stores: Stores) {
    let layer = ServiceBuilder::new().buffer(8).layer(once!(stores));
    is_once(stores, layer.service(hyper_client())).await;
}

async fn around_buffer(stores: Stores) {
    let layer = ServiceBuilder::new().layer(once!(stores)).buffer(8);
    is_once(stores, layer.service(hyper_client())).await;
}

async fn in_trace(stores: Stores) {
    let layer =
        ServiceBuilder::new().map_err(BoxError::from).layer(TraceLayer::new_for_http()).layer(once!(stores));
    is_once(stores, layer.service(hyper_client())).await;
}

async fn around_trace(stores: Stores) {
    let layer = ServiceBuilder::new().layer(once!(stores)).layer(TraceLayer::new_for_http());
    is_once(stores, layer.service(hyper_client())).await;
}
