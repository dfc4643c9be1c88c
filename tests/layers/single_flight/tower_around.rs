//! Among tower's own layers: they see its readiness, its delays and its errors, and it sees theirs.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_distributed::extract::SharedGet;
use tower_distributed::response::{Answer, AnswerCodec, FlightBody, Responses};
use tower_distributed::web::single_flight;
use tower_distributed::{SingleFlight, SingleFlightLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::net::{get, serve};
use crate::stores::{HOUR, Stores, on_each_store};
use crate::upstream::{Upstream, hyper_client};

on_each_store!(one_request_of_many_leaves, in_and_around_layers_of_tower_http);

type By = fn(&Request<String>) -> &'static str;
type Flights = SingleFlightLayer<Request<String>, Answer, Infallible, Responses>;

const SHORT: Duration = Duration::from_millis(50);

fn build(stores: &Stores) -> SingleFlight<Answer> {
    SingleFlight::builder(AnswerCodec).ttl(HOUR).lease_ttl(HOUR).build(&stores.open(), "upstream").unwrap()
}

fn flights(stores: &Stores) -> Flights {
    let by: By = |_| "all";
    SingleFlightLayer::new(build(stores), by).capture(Responses::default())
}

/// Many ask at once, and one request leaves.
async fn assert_once<S>(service: S)
where
    S: Service<Request<String>, Response = Response<FlightBody<Incoming>>, Error = BoxError> + Clone,
{
    let upstream = Upstream::start().await;
    let calls = (0..20).map(|_| service.clone().oneshot(upstream.get("/")));
    for outcome in join_all(calls).await {
        assert_eq!(outcome.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(upstream.requests(), 1);
}

async fn one_request_of_many_leaves(stores: Stores) {
    // Each on stores of its own, where there is no answer yet.
    let fresh = || flights(&Stores::in_memory());
    assert_once(ServiceBuilder::new().buffer(8).layer(flights(&stores)).service(hyper_client())).await;
    assert_once(ServiceBuilder::new().layer(fresh()).buffer(32).service(hyper_client())).await;
    assert_once(ServiceBuilder::new().concurrency_limit(3).layer(fresh()).service(hyper_client())).await;
    assert_once(ServiceBuilder::new().layer(fresh()).concurrency_limit(3).service(hyper_client())).await;
    let service = ServiceBuilder::new().layer(fresh()).service(BoxCloneService::new(hyper_client()));
    assert_once(BoxCloneService::new(service)).await;
}

fn by_path(request: &Request<Body>) -> &str {
    request.uri().path()
}

async fn are_told_hello(app: Router, path: &str) {
    let url = serve(app).await + path;
    for answer in join_all((0..5).map(|_| get(&url, &[]))).await {
        assert_eq!((answer.status, &*answer.body), (StatusCode::OK, "hello"));
    }
}

async fn in_and_around_layers_of_tower_http(stores: Stores) {
    let flights = || single_flight(build(&stores), SharedGet::new(by_path));
    let app = |path| Router::new().route(path, on_get(async || "hello"));
    let layers = ServiceBuilder::new().layer(TraceLayer::new_for_http()).layer(flights());
    are_told_hello(app("/in").layer(layers), "/in").await;
    // Its bodies are such that the layer can be around it as it is.
    let layers = ServiceBuilder::new().layer(flights()).layer(TraceLayer::new_for_http());
    are_told_hello(app("/around").layer(layers), "/around").await;

    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, SHORT);
    let hang = on_get(std::future::pending::<StatusCode>);
    let layers = ServiceBuilder::new().layer(flights()).layer(timeout);
    let url = serve(Router::new().route("/hang", hang).layer(layers)).await + "/hang";
    for answer in join_all((0..3).map(|_| get(&url, &[]))).await {
        assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    }
}
