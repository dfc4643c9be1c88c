//! The table "the order of layers" of the guide `on_axum`: each row in the order that it names, and in the other one.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get as on_get, post as on_post};
use futures::FutureExt as _;
use futures::future::join_all;
use http::{HeaderValue, StatusCode};
use tokio::sync::Semaphore;
use tower::retry::{Policy, RetryLayer};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::extract::{header, shared_get};
use tower_distributed::{
    RateLimitLayer, RefusalKind, SingleFlight, TokenBucket, WaitGroup, response, web,
};
use tower_http::cors::{Any, CorsLayer};
use tower_http::timeout::TimeoutLayer;

use crate::families::permits;
use crate::flights::{kind, pages};
use crate::stores::{SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(
    metrics_see_refusals_from_outside,
    cors_outside_of_the_limit,
    compression_outside_of_flights,
    what_is_shed_is_charged_inside,
    guesses_are_limited_outside_of_the_authentication,
    forged_keys_are_refused_by_the_authentication,
    replays_are_limited_inside_of_the_limit,
    replays_do_not_wait_for_permits,
    a_timeout_bounds_the_wait_from_outside,
    followers_take_no_permit,
    a_refused_request_needs_no_permit,
    a_panic_releases_on_either_side,
    each_attempt_is_charged,
);

/// The key of all requests.
const ALL: &str = "all";

fn all(_: &Request) -> &'static str {
    ALL
}

fn hello() -> Router {
    Router::new()
        .route("/", on_get(async || "hello"))
        .route("/", on_post(async || "paid"))
}

fn request(method: &str, fields: &[(&str, &str)]) -> Request {
    let request = Request::builder().method(method).uri("/");
    let request = fields.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    request.body(Body::empty()).unwrap()
}

async fn ask(app: &Router, method: &str, fields: &[(&str, &str)]) -> Response {
    app.clone().oneshot(request(method, fields)).await.unwrap()
}

async fn status(app: &Router, method: &str, fields: &[(&str, &str)]) -> u16 {
    ask(app, method, fields).await.status().as_u16()
}

/// Lays two layers around an app: `$outside` outside of `$inside` if `$as_named`, otherwise the other way around.
macro_rules! layered {
    ($app:expr, $inside:expr, $outside:expr, $as_named:expr) => {
        if $as_named {
            $app.layer($inside).layer($outside)
        } else {
            $app.layer($outside).layer($inside)
        }
    };
}

/// Both orders run on one store, so each has a name of its own.
fn name_of(as_named: bool) -> &'static str {
    if as_named {
        "right-order"
    } else {
        "other-order"
    }
}

/// Shows when a handler was entered, and lets it go on.
#[derive(Clone)]
struct Gate(Arc<AtomicUsize>, Arc<Semaphore>);

impl Gate {
    fn new() -> Self {
        Self(Arc::default(), Arc::new(Semaphore::new(0)))
    }

    async fn pass(self) -> &'static str {
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.acquire().await.unwrap().forget();
        "hello"
    }

    async fn is_entered(&self) {
        eventually("the handler to run", SOON, async || {
            self.0.load(Ordering::SeqCst) == 1
        })
        .await;
    }
}

/// The remaining tokens of all.
async fn remaining(bucket: &TokenBucket) -> u32 {
    bucket.peek(ALL).await.unwrap().remaining()
}

async fn metrics_see_refusals_from_outside(stores: Stores) {
    for (outside, counted) in [(true, 2), (false, 1)] {
        let seen = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&seen);
        let metrics = from_fn(move |request: Request, next: Next| {
            counter.fetch_add(1, Ordering::SeqCst);
            next.run(request)
        });
        let bucket = at_most(1, &stores.open());
        bucket.reset(ALL).await.unwrap();
        let limit = web::rate_limit(bucket, all);
        let app = layered!(hello(), limit, metrics, outside);
        assert_eq!(status(&app, "GET", &[]).await, 200);
        assert_eq!(status(&app, "GET", &[]).await, 429);
        assert_eq!(seen.load(Ordering::SeqCst), counted, "outside: {outside}");
    }
}

async fn cors_outside_of_the_limit(stores: Stores) {
    let fields = [
        ("origin", "https://example.com"),
        ("access-control-request-method", "GET"),
    ];
    for outside in [true, false] {
        let cors = CorsLayer::new().allow_origin(Any);
        let bucket = at_most(1, &stores.open());
        bucket.reset(ALL).await.unwrap();
        let limit = web::rate_limit(bucket, all);
        let app = layered!(hello(), limit, cors, outside);
        assert_eq!(status(&app, "OPTIONS", &fields).await, 200);
        let first = ask(&app, "GET", &fields).await.status().as_u16();
        assert_eq!(first, if outside { 200 } else { 429 }, "outside: {outside}");
        let refused = ask(&app, "GET", &fields).await;
        assert_eq!(refused.status(), 429);
        let allowed = refused.headers().get("access-control-allow-origin");
        assert_eq!(allowed.is_some(), outside);
    }
}

async fn compression_outside_of_flights(stores: Stores) {
    // What `CompressionLayer` does to the head of a response.
    async fn compress(request: Request, next: Next) -> Response {
        let encoding = request.headers().get("accept-encoding").cloned();
        let mut response = next.run(request).await;
        let headers = response.headers_mut();
        headers.insert("vary", HeaderValue::from_static("accept-encoding"));
        if let Some(encoding) = encoding {
            headers.insert("content-encoding", encoding);
        }
        response
    }
    for (outside, runs) in [(true, 1), (false, 2)] {
        let ran = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&ran);
        let hello = on_get(async move || {
            counter.fetch_add(1, Ordering::SeqCst);
            "hello"
        });
        let pages: SingleFlight<response::Answer> = pages(&stores);
        let path = if outside { "/outside" } else { "/inside" };
        let flights = web::single_flight(pages, shared_get());
        let compression = from_fn(compress);
        let app = Router::new().route(path, hello);
        let app = layered!(app, flights, compression, outside);
        for encoding in ["gzip", "br", "gzip"] {
            let request = Request::get(path)
                .header("host", "example.com")
                .header("accept-encoding", encoding);
            let request = request.body(Body::empty()).unwrap();
            let response = app.clone().oneshot(request).await.unwrap();
            assert_eq!(response.headers()["content-encoding"], encoding);
        }
        assert_eq!(ran.load(Ordering::SeqCst), runs, "outside: {outside}");
    }
}

async fn what_is_shed_is_charged_inside(stores: Stores) {
    for (outside, left) in [(true, 4), (false, 3)] {
        let bucket = at_most(5, &stores.open());
        bucket.reset(ALL).await.unwrap();
        let limit = RateLimitLayer::new(bucket.clone(), |_: &()| ALL);
        let gate = Gate::new();
        let handler = gate.clone();
        let work = service_fn(move |()| {
            let handler = handler.clone();
            async move { Ok::<_, BoxError>(handler.pass().await) }
        });
        let shed = ServiceBuilder::new().load_shed().concurrency_limit(1);
        let service = if outside {
            tower::util::BoxCloneService::new(shed.layer(limit).service(work))
        } else {
            let inner = shed.service(work);
            tower::util::BoxCloneService::new(ServiceBuilder::new().layer(limit).service(inner))
        };
        let first = tokio::spawn(service.clone().oneshot(()));
        gate.is_entered().await;
        let second = service.oneshot(()).await.unwrap_err();
        assert!(second.is::<tower::load_shed::error::Overloaded>());
        gate.1.add_permits(1);
        first.await.unwrap().unwrap();
        assert_eq!(remaining(&bucket).await, left, "outside: {outside}");
    }
}

/// Knows one password.
async fn authenticate(request: Request, next: Next) -> Response {
    let password = request.headers().get("password");
    if password.is_some_and(|password| password == "right") {
        next.run(request).await
    } else {
        StatusCode::UNAUTHORIZED.into_response()
    }
}

async fn guesses_are_limited_outside_of_the_authentication(stores: Stores) {
    for (outside, told) in [(true, [401, 429, 429]), (false, [401, 401, 401])] {
        let bucket = at_most(1, &stores.open());
        bucket.reset(ALL).await.unwrap();
        let limit = web::rate_limit(bucket, all);
        let authentication = from_fn(authenticate);
        let app = layered!(hello(), authentication, limit, outside);
        for expected in told {
            assert_eq!(status(&app, "GET", &[("password", "?")]).await, expected);
        }
    }
}

async fn forged_keys_are_refused_by_the_authentication(stores: Stores) {
    for (outside, told) in [(true, 401), (false, 200)] {
        let name = name_of(outside);
        let user = header("x-user").unwrap();
        let once = web::idempotency(&stores.open(), name, user)
            .build()
            .unwrap();
        let authentication = from_fn(authenticate);
        let app = layered!(hello(), once, authentication, outside);
        let key = [("x-user", "ann"), ("idempotency-key", "\"k\"")];
        let own = [key[0], key[1], ("password", "right")];
        assert_eq!(status(&app, "POST", &own).await, 200);
        assert_eq!(status(&app, "POST", &key).await, told);
    }
}

const KEY: [(&str, &str); 1] = [("idempotency-key", "\"k\"")];

async fn replays_are_limited_inside_of_the_limit(stores: Stores) {
    for (outside, left) in [(true, 2), (false, 4)] {
        let name = name_of(outside);
        let bucket = at_most(5, &stores.open());
        bucket.reset(ALL).await.unwrap();
        let limit = web::rate_limit(bucket.clone(), all);
        let once = web::idempotency(&stores.open(), name, all).build().unwrap();
        let app = layered!(hello(), once, limit, outside);
        for _ in 0..3 {
            assert_eq!(status(&app, "POST", &KEY).await, 200);
        }
        assert_eq!(remaining(&bucket).await, left, "outside: {outside}");
    }
}

async fn replays_do_not_wait_for_permits(stores: Stores) {
    for (outside, told) in [(true, 200), (false, 503)] {
        let name = name_of(outside);
        let exports = permits(&stores.open(), 1);
        let limit = web::concurrency_limit(exports.clone(), all);
        let once = web::idempotency(&stores.open(), name, all).build().unwrap();
        let app = layered!(hello(), limit, once, outside);
        let first = ask(&app, "POST", &KEY).await;
        assert_eq!(first.status(), 200);
        drop(first);
        exports.wait(ALL).await.unwrap();
        let elsewhere = exports.add(ALL).await.unwrap();
        assert_eq!(status(&app, "POST", &KEY).await, told);
        elsewhere.done().await.unwrap();
    }
}

async fn a_timeout_bounds_the_wait_from_outside(stores: Stores) {
    let short = Duration::from_millis(50);
    for (outside, told) in [(true, 504), (false, 200)] {
        let exports = permits(&stores.open(), 1);
        let limit = web::concurrency_limit(exports.clone(), all).max_wait(SOON);
        let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, short);
        let app = layered!(hello(), limit, timeout, outside);
        let elsewhere = exports.add(ALL).await.unwrap();
        let waiting = tokio::spawn(app.oneshot(request("GET", &[])));
        if outside {
            eventually("the timeout", SOON, async || waiting.is_finished()).await;
        } else {
            // The time that the layer is about, and as much again.
            tokio::time::sleep(2 * short).await;
            assert!(!waiting.is_finished());
        }
        elsewhere.done().await.unwrap();
        let answer = waiting.await.unwrap().unwrap();
        assert_eq!(answer.status().as_u16(), told);
        drop(answer);
        // The place of the request is free, and so is its permit.
        exports.wait(ALL).await.unwrap();
    }
}

async fn followers_take_no_permit(stores: Stores) {
    for (outside, told) in [(true, 200), (false, 503)] {
        let gate = Gate::new();
        let handler = gate.clone();
        let path = if outside { "/outside" } else { "/inside" };
        let app = Router::new().route(path, on_get(move || handler.pass()));
        let limit = web::concurrency_limit(permits(&stores.open(), 1), all);
        let flights = web::single_flight(pages(&stores), shared_get());
        let app = layered!(app, limit, flights, outside);
        let get = || {
            let request = Request::get(path).header("host", "example.com");
            app.clone().oneshot(request.body(Body::empty()).unwrap())
        };
        let leader = tokio::spawn(get());
        gate.is_entered().await;
        let follower = tokio::spawn(get());
        if !outside {
            // It is refused while the leader works.
            eventually("a refusal", SOON, async || follower.is_finished()).await;
        }
        gate.1.add_permits(1);
        for (answer, expected) in join_all([leader, follower])
            .await
            .into_iter()
            .zip([200, told])
        {
            assert_eq!(answer.unwrap().unwrap().status(), expected, "{path}");
        }
    }
}

async fn a_refused_request_needs_no_permit(stores: Stores) {
    for (inside, told) in [(true, 429), (false, 503)] {
        let exports = permits(&stores.open(), 1);
        let bucket = at_most(1, &stores.open());
        bucket.reset(ALL).await.unwrap();
        assert!(bucket.allow(ALL).await.unwrap().is_admitted());
        let limit = web::rate_limit(bucket, all);
        let permit = web::concurrency_limit(exports.clone(), all);
        let app = layered!(hello(), permit, limit, inside);
        let elsewhere = exports.add(ALL).await.unwrap();
        assert_eq!(status(&app, "GET", &[]).await, told);
        elsewhere.done().await.unwrap();
    }
}

async fn a_panic_releases_on_either_side(stores: Stores) {
    async fn caught(request: Request, next: Next) -> Response {
        let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
        answer.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }
    async fn broken() -> &'static str {
        panic!("as the test wants")
    }
    for outside in [true, false] {
        let exports: WaitGroup = permits(&stores.open(), 1);
        let limit = web::concurrency_limit(exports.clone(), all);
        let app = Router::new().route("/", on_get(broken));
        let catch = from_fn(caught);
        let app = layered!(app, limit, catch, outside);
        assert_eq!(status(&app, "GET", &[]).await, 500);
        exports.wait(ALL).await.unwrap();
    }
}

/// Repeats what failed, twice.
#[derive(Clone)]
struct Twice(u32);

impl Policy<(), (), BoxError> for Twice {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _: &mut (), result: &mut Result<(), BoxError>) -> Option<Self::Future> {
        let again = result.is_err() && self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        again.then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, (): &()) -> Option<()> {
        Some(())
    }
}

async fn each_attempt_is_charged(stores: Stores) {
    async fn fails<S>(service: S) -> BoxError
    where
        S: Service<(), Response = (), Error = BoxError>,
    {
        service.oneshot(()).await.unwrap_err()
    }
    for (outside, left) in [(true, 2), (false, 4)] {
        let bucket = at_most(5, &stores.open());
        bucket.reset(ALL).await.unwrap();
        let limit = RateLimitLayer::new(bucket.clone(), |_: &()| ALL);
        let retry = RetryLayer::new(Twice(2));
        let upstream = service_fn(|()| async { Err::<(), BoxError>("away".into()) });
        let layers = ServiceBuilder::new();
        let error = if outside {
            fails(layers.layer(retry).layer(limit).service(upstream)).await
        } else {
            fails(layers.layer(limit).layer(retry).service(upstream)).await
        };
        assert_ne!(kind(&error), Some(RefusalKind::RateLimited));
        assert_eq!(remaining(&bucket).await, left, "outside: {outside}");
    }
}
