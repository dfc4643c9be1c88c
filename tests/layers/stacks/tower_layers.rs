//! Among tower's own layers: they see our layers' readiness, delays and errors, and ours see theirs.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use http::{Request, Response, StatusCode};
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_distributed::response::refuse;
use tower_distributed::{ConcurrencyLimitLayer, DedupeLayer, RateLimitLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::contract::subjects::{self, Refusing};
use crate::families::permits;
use crate::flights::kind;
use crate::items::dedupe;
use crate::net::{get, serve};
use crate::stores::{Stores, at_most, on_each_store};
use crate::upstream::{Upstream, hyper_client};

on_each_store!(one_is_at_work_at_a_time, in_and_around_layers_of_tower_http);

fn by_url(request: &Request<String>) -> String {
    request.uri().to_string()
}

/// Every 2xx counts as handled.
fn is_good<B, E>(outcome: &Result<Response<B>, E>) -> bool {
    outcome.as_ref().is_ok_and(|response| response.status().is_success())
}

/// One is at work, others are refused; when it is gone, or answered, the key is as the kind of layer has it.
async fn is_one<T: Refusing, S, B>(stores: &Stores, service: S)
where
    S: Service<Request<String>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
{
    let upstream = Upstream::start().await;
    let hanging = tokio::spawn(service.clone().oneshot(upstream.get("/hang")));
    upstream.reached_by(1).await;
    for _ in 0..2 {
        let error = service.clone().oneshot(upstream.get("/hang")).await.err().unwrap();
        assert_eq!(kind(&error), Some(T::REFUSAL), "{error}");
    }
    hanging.abort();
    assert!(hanging.await.is_err_and(|error| error.is_cancelled()));
    T::becomes(stores, &upstream.at("/hang"), T::CALLED).await;
    assert_eq!(service.clone().oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
    T::becomes(stores, &upstream.at("/"), T::ANSWERED).await;
    let again = service.oneshot(upstream.get("/")).await.err();
    assert_eq!(again.as_ref().and_then(kind), T::AFTER_ANSWER, "{again:?}");
    assert_eq!(upstream.requests(), 2 + usize::from(T::AFTER_ANSWER.is_none()));
}

/// Runs [`is_one`] with a layer of each implementation, with others of tower around it and in it.
macro_rules! each_is_one {
    ($stores:expr, |$layer:ident| $service:expr) => {{
        let $layer = ConcurrencyLimitLayer::new(permits(&$stores.open(), 1), by_url);
        is_one::<subjects::ConcurrencyLimit, _, _>(&$stores, $service).await;
        let $layer = RateLimitLayer::new(at_most(1, &$stores.open()), by_url);
        is_one::<subjects::RateLimit, _, _>(&$stores, $service).await;
        let $layer = DedupeLayer::new(dedupe(&$stores.open()), by_url).success(is_good::<_, _>);
        is_one::<subjects::Dedupe, _, _>(&$stores, $service).await;
    }};
}

async fn one_is_at_work_at_a_time(stores: Stores) {
    let layers = ServiceBuilder::new;
    each_is_one!(stores, |layer| {
        // One of two is taken by what hangs.
        let inner = layers().buffer(8).concurrency_limit(2).service(hyper_client());
        layers().buffer(8).concurrency_limit(2).layer(layer).service(inner)
    });
    each_is_one!(stores, |layer| {
        let layers = layers().map_err(BoxError::from).layer(TraceLayer::new_for_http()).layer(layer);
        BoxCloneService::new(layers.layer(TraceLayer::new_for_http()).service(hyper_client()))
    });
}

/// The first request is answered as is told, and the second refused.
async fn is_one_over_http(router: Router, told: (StatusCode, &str)) {
    let url = serve(router).await;
    let first = get(&url, &[]).await;
    assert_eq!((first.status, &*first.body), told);
    let refused = get(&url, &[]).await;
    assert_eq!((refused.status, &refused.json()["status"]), (StatusCode::TOO_MANY_REQUESTS, &429.into()));
}

async fn in_and_around_layers_of_tower_http(stores: Stores) {
    let limit = |path: &'static str| {
        RateLimitLayer::new(at_most(1, &stores.open()), move |_: &axum::extract::Request| path)
            .reject_with(refuse())
    };
    let app = || Router::new().route("/", on_get(async || "hello"));
    let layers = ServiceBuilder::new().layer(TraceLayer::new_for_http()).layer(limit("in"));
    is_one_over_http(app().layer(layers), (StatusCode::OK, "hello")).await;
    // `TraceLayer` wraps the body; a refusal cannot be made in its type, so the body is boxed in between.
    let layers = ServiceBuilder::new()
        .layer(limit("around"))
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(TraceLayer::new_for_http());
    is_one_over_http(app().layer(layers), (StatusCode::OK, "hello")).await;

    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(50));
    let hang = Router::new().route("/", on_get(std::future::pending::<StatusCode>));
    let layers = ServiceBuilder::new().layer(limit("timeout")).layer(timeout);
    is_one_over_http(hang.layer(layers), (StatusCode::GATEWAY_TIMEOUT, "")).await;
}
