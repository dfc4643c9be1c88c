//! Among tower's own layers: they see our layers' readiness, delays and errors, and ours see theirs.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::timeout::error::Elapsed;
use tower::util::{BoxCloneService, BoxCloneSyncService};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_distributed::response::refuse;
use tower_distributed::{ConcurrencyLimitLayer, DedupeLayer, RateLimitLayer, RwLockLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::contract::subjects::{self, Refusing, State, Subject as _};
use crate::families::{locks, permits};
use crate::flights::kind;
use crate::items::dedupe;
use crate::net::{get, serve};
use crate::stores::{HOUR, SOON, Stores, at_most, on_each_store};
use crate::upstream::{Again, Upstream, hyper_client};

on_each_store!(
    one_is_at_work_at_a_time,
    one_in_the_other,
    in_and_around_timeout,
    in_and_around_retry,
    in_and_around_layers_of_tower_http,
);

const SHORT: Duration = Duration::from_millis(50);

fn by_url(request: &Request<String>) -> String {
    request.uri().to_string()
}

/// Every 2xx counts as handled.
fn is_good<B, E>(outcome: &Result<Response<B>, E>) -> bool {
    outcome.as_ref().is_ok_and(|response| response.status().is_success())
}

macro_rules! once {
    ($stores:expr) => {
        DedupeLayer::new(dedupe(&$stores.open()), by_url).success(is_good::<_, _>)
    };
}

/// By the URL, one request at a time.
macro_rules! permit {
    ($stores:expr) => {
        ConcurrencyLimitLayer::new(permits(&$stores.open(), 1), by_url)
    };
}

/// Runs a block with a layer of each implementation, and with its subject in the contract.
macro_rules! on_each_kind {
    ($stores:expr, |$layer:ident, $Kind:ident| $block:block) => {{
        {
            type $Kind = subjects::ConcurrencyLimit;
            let $layer = permit!($stores);
            $block
        }
        {
            type $Kind = subjects::RateLimit;
            let $layer = RateLimitLayer::new(at_most(1, &$stores.open()), by_url);
            $block
        }
        {
            type $Kind = subjects::Dedupe;
            let $layer = once!($stores);
            $block
        }
    }};
}

/// A request that hangs, and is dropped with `abort`.
async fn hang<S, B>(
    upstream: &Upstream,
    service: &S,
) -> tokio::task::JoinHandle<Result<Response<B>, BoxError>>
where
    S: Service<Request<String>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
{
    let hanging = tokio::spawn(service.clone().oneshot(upstream.get("/hang")));
    upstream.reached_by(upstream.requests() + 1).await;
    hanging
}

async fn abort<T: Send>(hanging: tokio::task::JoinHandle<T>) {
    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
}

/// Runs [`is_one`] for each kind of layer, with others of tower around it or in it.
macro_rules! each_is_one {
    ($stores:expr, |$layer:ident| $service:expr) => {
        on_each_kind!($stores, |$layer, Kind| {
            is_one::<Kind, _, _>(&$stores, $service).await;
        })
    };
}

/// One is at work, others are refused; when it is gone, or answered, the key is as the kind of layer has it.
async fn is_one<T: Refusing, S, B>(stores: &Stores, service: S) -> Upstream
where
    S: Service<Request<String>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
{
    let upstream = Upstream::start().await;
    let hanging = hang(&upstream, &service).await;
    for _ in 0..2 {
        let error = service.clone().oneshot(upstream.get("/hang")).await.err().unwrap();
        assert_eq!(kind(&error), Some(T::REFUSAL), "{error}");
    }
    abort(hanging).await;
    T::becomes(stores, &upstream.at("/hang"), T::CALLED).await;
    assert_eq!(service.clone().oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
    T::becomes(stores, &upstream.at("/"), T::ANSWERED).await;
    let again = service.oneshot(upstream.get("/")).await.err();
    assert_eq!(again.as_ref().and_then(kind), T::AFTER_ANSWER, "{again:?}");
    assert_eq!(upstream.requests(), 2 + usize::from(T::AFTER_ANSWER.is_none()));
    upstream
}

async fn one_is_at_work_at_a_time(stores: Stores) {
    let layers = ServiceBuilder::new;
    each_is_one!(stores, |layer| layers().buffer(8).layer(layer).service(hyper_client()));
    each_is_one!(stores, |layer| layers().layer(layer).buffer(8).service(hyper_client()));
    // One of two is taken by what hangs.
    each_is_one!(stores, |layer| layers().concurrency_limit(2).layer(layer).service(hyper_client()));
    each_is_one!(stores, |layer| layers().layer(layer).concurrency_limit(2).service(hyper_client()));
    each_is_one!(stores, |layer| {
        let service = layers().layer(layer).service(BoxCloneService::new(hyper_client()));
        BoxCloneService::new(service)
    });
    each_is_one!(stores, |layer| layers().layer(layer).service(BoxCloneSyncService::new(hyper_client())));
    each_is_one!(stores, |layer| {
        let layers = layers().map_err(BoxError::from).layer(TraceLayer::new_for_http());
        layers.layer(layer).service(hyper_client())
    });
    each_is_one!(stores, |layer| {
        layers().layer(layer).layer(TraceLayer::new_for_http()).service(hyper_client())
    });
}

async fn one_in_the_other(stores: Stores) {
    let limit = ConcurrencyLimitLayer::new(permits(&stores.open(), 1), by_url);
    let lock = RwLockLayer::new(locks(&stores.open()), by_url);
    let service = ServiceBuilder::new().layer(limit).layer(lock).service(hyper_client());
    let upstream = is_one::<subjects::ConcurrencyLimit, _, _>(&stores, service).await;
    for path in ["/", "/hang"] {
        subjects::RwLock::becomes(&stores, &upstream.at(path), State::Free).await;
    }
}

/// Cut short while another has the key, and at work.
async fn is_cut_short<T: Refusing, S>(stores: &Stores, service: S)
where
    S: Service<Request<String>, Response = Response<Incoming>, Error = BoxError> + Clone,
{
    let upstream = Upstream::start().await;
    let occupied = T::occupy(stores, &upstream.at("/")).await;
    assert!(service.clone().oneshot(upstream.get("/")).await.unwrap_err().is::<Elapsed>());
    T::free(occupied).await;
    T::becomes(stores, &upstream.at("/"), State::Free).await;
    assert_eq!(upstream.requests(), 0);
    assert!(service.oneshot(upstream.get("/hang")).await.unwrap_err().is::<Elapsed>());
    T::becomes(stores, &upstream.at("/hang"), T::CALLED).await;
}

async fn in_and_around_timeout(stores: Stores) {
    let layers = ServiceBuilder::new().timeout(SHORT).layer(permit!(stores).max_wait(HOUR));
    is_cut_short::<subjects::ConcurrencyLimit, _>(&stores, layers.service(hyper_client())).await;
    let layers = ServiceBuilder::new().timeout(SHORT).layer(once!(stores).max_wait(HOUR));
    is_cut_short::<subjects::Dedupe, _>(&stores, layers.service(hyper_client())).await;
    on_each_kind!(stores, |layer, Kind| {
        let upstream = Upstream::start().await;
        let service = ServiceBuilder::new().layer(layer).timeout(SHORT).service(hyper_client());
        let error = service.oneshot(upstream.get("/hang")).await.unwrap_err();
        assert!(error.is::<Elapsed>(), "{error}");
        Kind::becomes(&stores, &upstream.at("/hang"), Kind::CALLED).await;
        assert_eq!(upstream.requests(), 1);
    });
}

/// All ten attempts arrive, and leave nothing behind that was not there after one.
async fn is_retried<T: Refusing, S>(stores: &Stores, service: S)
where
    S: Service<Request<String>, Response = Response<Incoming>, Error = BoxError>,
{
    let upstream = Upstream::start().await;
    let response = service.oneshot(upstream.get("/fail")).await.unwrap();
    assert_eq!((response.status(), upstream.requests()), (StatusCode::INTERNAL_SERVER_ERROR, 10));
    T::becomes(stores, &upstream.at("/fail"), T::CALLED).await;
}

async fn in_and_around_retry(stores: Stores) {
    // Each attempt waits for the lease of the one before, which is on its way back.
    let layers = ServiceBuilder::new().retry(Again(9)).layer(permit!(stores).max_wait(SOON));
    is_retried::<subjects::ConcurrencyLimit, _>(&stores, layers.service(hyper_client())).await;
    // No attempt meets the claim of the one before.
    let layers = ServiceBuilder::new().retry(Again(9)).layer(once!(stores));
    is_retried::<subjects::Dedupe, _>(&stores, layers.service(hyper_client())).await;
    on_each_kind!(stores, |layer, Kind| {
        let layers = ServiceBuilder::new().layer(layer).retry(Again(9));
        is_retried::<Kind, _>(&stores, layers.service(hyper_client())).await;
    });
}

/// The first request is answered and the second refused.
async fn is_one_over_http(router: Router) {
    let url = serve(router).await;
    assert_eq!(get(&url, &[]).await.body, "hello");
    let refused = get(&url, &[]).await;
    assert_eq!((refused.status, &refused.json()["status"]), (StatusCode::TOO_MANY_REQUESTS, &429.into()));
}

async fn in_and_around_layers_of_tower_http(stores: Stores) {
    let limit = |path: &'static str| {
        RateLimitLayer::new(at_most(1, &stores.open()), move |_: &axum::extract::Request| path)
    };
    let app = || Router::new().route("/", on_get(async || "hello"));
    let layers = ServiceBuilder::new().layer(TraceLayer::new_for_http());
    is_one_over_http(app().layer(layers.layer(limit("in").reject_with(refuse())))).await;
    // `TraceLayer` wraps the body; a refusal cannot be made in its type, so the body is boxed in between.
    let layers = ServiceBuilder::new()
        .layer(limit("around").reject_with(refuse()))
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(TraceLayer::new_for_http());
    is_one_over_http(app().layer(layers)).await;

    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, SHORT);
    let layers = ServiceBuilder::new().layer(limit("timeout").reject_with(refuse())).layer(timeout);
    let hang = on_get(std::future::pending::<StatusCode>);
    let url = serve(Router::new().route("/", hang).layer(layers)).await;
    assert_eq!(get(&url, &[]).await.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(get(&url, &[]).await.status, StatusCode::TOO_MANY_REQUESTS);
}
