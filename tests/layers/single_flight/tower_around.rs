//! Among tower's own layers: they see its readiness, its delays and its errors, and it sees theirs.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};
use tower_distributed::extract::SharedGet;
use tower_distributed::response::{Answer, AnswerCodec, FlightBody, Responses};
use tower_distributed::web::single_flight;
use tower_distributed::{SingleFlight, SingleFlightLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::net::{get, serve};
use crate::stacks::tower_layers::{abort, hang};
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use crate::upstream::{Again, Upstream, hyper_client};
use support::eventually;

on_each_store!(
    in_and_around_buffer,
    in_and_around_concurrency_limit,
    in_timeout,
    around_timeout,
    in_retry,
    around_retry,
    in_load_shed,
    around_load_shed,
    boxed,
    in_trace_layer,
    around_trace_layer,
    around_the_timeout_of_tower_http,
);

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

async fn in_and_around_buffer(stores: Stores) {
    assert_once(ServiceBuilder::new().buffer(8).layer(flights(&stores)).service(hyper_client())).await;
    let stores = Stores::in_memory();
    assert_once(ServiceBuilder::new().layer(flights(&stores)).buffer(32).service(hyper_client())).await;
}

async fn in_and_around_concurrency_limit(stores: Stores) {
    assert_once(ServiceBuilder::new().concurrency_limit(3).layer(flights(&stores)).service(hyper_client()))
        .await;
    let stores = Stores::in_memory();
    assert_once(ServiceBuilder::new().layer(flights(&stores)).concurrency_limit(3).service(hyper_client()))
        .await;
}

async fn boxed(stores: Stores) {
    let service = ServiceBuilder::new().layer(flights(&stores)).service(BoxCloneService::new(hyper_client()));
    assert_once(BoxCloneService::new(service)).await;
}

async fn in_timeout(stores: Stores) {
    let upstream = Upstream::start().await;
    let service = ServiceBuilder::new().timeout(SHORT).layer(flights(&stores)).service(hyper_client());
    for _ in 0..2 {
        let error = service.clone().oneshot(upstream.get("/hang")).await.err().unwrap();
        assert!(error.is::<Elapsed>(), "{error}");
    }
    assert_eq!(upstream.requests(), 2, "whoever gives up leaves the lead to the next");
    let patient = ServiceBuilder::new().layer(flights(&stores)).service(hyper_client());
    assert_eq!(patient.oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
}

async fn around_timeout(stores: Stores) {
    let upstream = Upstream::start().await;
    let service = ServiceBuilder::new().layer(flights(&stores)).timeout(SHORT).service(hyper_client());
    for outcome in join_all((0..3).map(|_| service.clone().oneshot(upstream.get("/hang")))).await {
        let error = outcome.err().unwrap();
        assert!(error.is::<Elapsed>(), "{error}");
    }
    assert_eq!(upstream.requests(), 3, "an error is its caller's own");
    assert_eq!(service.oneshot(upstream.get("/")).await.unwrap().status(), StatusCode::OK);
}

/// All ten attempts leave.
async fn is_retried<S>(service: S)
where
    S: Service<Request<String>, Response = Response<FlightBody<Incoming>>, Error = BoxError>,
{
    let upstream = Upstream::start().await;
    let response = service.oneshot(upstream.get("/fail")).await.unwrap();
    assert_eq!((response.status(), upstream.requests()), (StatusCode::INTERNAL_SERVER_ERROR, 10));
}

async fn in_retry(stores: Stores) {
    is_retried(ServiceBuilder::new().retry(Again(9)).layer(flights(&stores)).service(hyper_client())).await;
}

async fn around_retry(stores: Stores) {
    is_retried(ServiceBuilder::new().layer(flights(&stores)).retry(Again(9)).service(hyper_client())).await;
}

/// One hangs, and leaves no room for another until it is gone.
async fn is_shed<S>(service: S)
where
    S: Service<Request<String>, Response = Response<FlightBody<Incoming>>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let upstream = Upstream::start().await;
    let hanging = hang(&upstream, &service).await;
    let error = service.clone().oneshot(upstream.get("/")).await.err().unwrap();
    assert!(error.is::<Overloaded>(), "{error}");
    abort(hanging).await;
    // The run is dropped in its own task, a little later.
    eventually("room", SOON, async || service.clone().oneshot(upstream.get("/")).await.is_ok()).await;
}

async fn in_load_shed(stores: Stores) {
    let layers = ServiceBuilder::new().load_shed().layer(flights(&stores)).concurrency_limit(1);
    is_shed(layers.service(hyper_client())).await;
}

async fn around_load_shed(stores: Stores) {
    let by = |request: &Request<String>| request.uri().path().to_owned();
    let layer = SingleFlightLayer::new(build(&stores), by).capture(Responses::default());
    let layers = ServiceBuilder::new().layer(layer).load_shed().concurrency_limit(1);
    is_shed(layers.service(hyper_client())).await;
}

fn by_path(request: &Request<Body>) -> &str {
    request.uri().path()
}

async fn are_told_hello(app: Router) {
    let url = serve(app).await;
    for answer in join_all((0..5).map(|_| get(&url, &[]))).await {
        assert_eq!((answer.status, &*answer.body), (StatusCode::OK, "hello"));
    }
}

async fn in_trace_layer(stores: Stores) {
    let layers = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(single_flight(build(&stores), SharedGet::new(by_path)));
    are_told_hello(Router::new().route("/", on_get(async || "hello")).layer(layers)).await;
}

/// Its bodies are such that the layer can be around it as it is.
async fn around_trace_layer(stores: Stores) {
    let layers = ServiceBuilder::new()
        .layer(single_flight(build(&stores), SharedGet::new(by_path)))
        .layer(TraceLayer::new_for_http());
    are_told_hello(Router::new().route("/", on_get(async || "hello")).layer(layers)).await;
}

async fn around_the_timeout_of_tower_http(stores: Stores) {
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, SHORT);
    let layers =
        ServiceBuilder::new().layer(single_flight(build(&stores), SharedGet::new(by_path))).layer(timeout);
    let hang = on_get(std::future::pending::<StatusCode>);
    let url = serve(Router::new().route("/", hang).layer(layers)).await;
    for answer in join_all((0..3).map(|_| get(&url, &[]))).await {
        assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    }
}
