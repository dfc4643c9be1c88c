//! Among tower's own layers: they see our layers' readiness, delays and errors, and ours see theirs.

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use http::{Request, Response, StatusCode};
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_distributed::response::refuse;
use tower_distributed::{ConcurrencyLimitLayer, DedupeLayer, RateLimitLayer};
use tower_http::trace::TraceLayer;

use crate::contract::subjects::{self, Refusing};
use crate::families::permits;
use crate::flights::kind;
use crate::items::dedupe;
use crate::net::{get, serve};
use crate::stores::{Stores, at_most, on_each_store};
use crate::upstream::{Upstream, hyper_client};

on_each_store!(a_client_among_layers_of_tower, around_a_layer_of_tower_http);

fn by_url(request: &Request<String>) -> String {
    request.uri().to_string()
}

/// Every 2xx counts as handled.
fn is_good<B, E>(outcome: &Result<Response<B>, E>) -> bool {
    outcome
        .as_ref()
        .is_ok_and(|response| response.status().is_success())
}

/// One request of a client passes, and what comes then is as the kind of layer has it.
async fn is_one<T: Refusing, S, B>(stores: &Stores, service: S)
where
    S: Service<Request<String>, Response = Response<B>, Error = BoxError> + Clone,
{
    let upstream = Upstream::start().await;
    assert_eq!(
        service
            .clone()
            .oneshot(upstream.get())
            .await
            .unwrap()
            .status(),
        StatusCode::OK
    );
    T::becomes(stores, &upstream.url, T::ANSWERED).await;
    let again = service.oneshot(upstream.get()).await.err();
    assert_eq!(again.as_ref().and_then(kind), T::AFTER_ANSWER, "{again:?}");
    assert_eq!(
        upstream.requests(),
        1 + usize::from(T::AFTER_ANSWER.is_none())
    );
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

async fn a_client_among_layers_of_tower(stores: Stores) {
    let layers = ServiceBuilder::new;
    each_is_one!(stores, |layer| {
        let inner = layers()
            .buffer(8)
            .concurrency_limit(2)
            .service(hyper_client());
        layers()
            .buffer(8)
            .concurrency_limit(2)
            .layer(layer)
            .service(inner)
    });
    each_is_one!(stores, |layer| {
        let layers = layers()
            .map_err(BoxError::from)
            .layer(TraceLayer::new_for_http())
            .layer(layer);
        BoxCloneService::new(
            layers
                .layer(TraceLayer::new_for_http())
                .service(hyper_client()),
        )
    });
}

async fn around_a_layer_of_tower_http(stores: Stores) {
    let limit = RateLimitLayer::new(
        at_most(1, &stores.open()),
        |_: &axum::extract::Request| "all",
    );
    // `TraceLayer` wraps the body; a refusal cannot be made in its type, so the body is boxed in between.
    let layers = ServiceBuilder::new()
        .layer(limit.reject_with(refuse()))
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(TraceLayer::new_for_http());
    let url = serve(
        Router::new()
            .route("/", on_get(async || "hello"))
            .layer(layers),
    )
    .await;
    assert_eq!(get(&url, &[]).await.body, "hello");
    assert_eq!(get(&url, &[]).await.status, StatusCode::TOO_MANY_REQUESTS);
}
