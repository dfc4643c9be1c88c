//! A service that answers at once, alone and within the layers that are compared.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::runtime::{Builder, Runtime};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, ServiceExt};
use tower_distributed::{
    ConcurrencyLimitLayer, Quota, RateLimitLayer, Store, TokenBucket, WaitGroup, extract, response,
};
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};

const FIELD: &str = "x-api-key";
pub const KEY: &str = "key-0000000000000001";
/// A token every microsecond and an hour's worth at once: everything is admitted.
pub const RATE: u32 = 1_000_000;
pub const BURST: u32 = 3_600_000_000;
const MOST: u32 = 1000;
/// So many requests are made before the clock starts: few enough to stay in the cache.
const BATCH: u64 = 64;

/// All that is compared here.
pub trait Service:
    tower::Service<Request<()>, Response = Response<Body>, Error = Infallible>
{
}

impl<S: tower::Service<Request<()>, Response = Response<Body>, Error = Infallible>> Service for S {}

#[derive(Clone, Copy, Debug)]
pub struct Inner;

impl tower::Service<Request<()>> for Inner {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        drop(black_box(request));
        ready(Ok(Response::new(Body::empty())))
    }
}

pub fn ours_by_header() -> impl Service {
    ours_with(bucket())
}

/// Without RateLimit fields, which tower_governor does not send by default.
fn ours_with(bucket: TokenBucket) -> impl Service {
    let key = extract::header(FIELD).unwrap().plain();
    RateLimitLayer::new(bucket, key)
        .reject_with(response::refuse())
        .layer(Inner)
}

pub fn ours_by_peer() -> impl Service {
    let key = extract::client_ip().peer(|info: &ConnectInfo<SocketAddr>| info.0.ip());
    RateLimitLayer::new(bucket(), key)
        .reject_with(response::refuse())
        .layer(Inner)
}

/// One request is admitted, and then none.
pub fn ours_refused() -> impl Service {
    ours_with(TokenBucket::new(&Store::in_memory(), "bench", Quota::per_hour(1)).unwrap())
}

pub fn governor_refused() -> impl Service {
    governor_with(Duration::from_secs(3600), 1)
}

pub fn bucket() -> TokenBucket {
    let quota = Quota::per_second(RATE).burst(BURST);
    TokenBucket::new(&Store::in_memory(), "bench", quota).unwrap()
}

/// A permit of a limit that is never reached.
pub fn our_permit() -> impl Service + Clone + Send {
    let group = WaitGroup::new(&Store::in_memory(), "bench", MOST).unwrap();
    let key = |_: &Request<()>| KEY;
    ConcurrencyLimitLayer::new(group, key)
        .reject_with(response::refuse())
        .layer(Inner)
}

pub fn towers_permit() -> impl Service + Clone + Send {
    ConcurrencyLimit::new(Inner, MOST as usize)
}

pub fn governor_by_header() -> impl Service {
    governor_with(Duration::from_secs(1) / RATE, BURST)
}

fn governor_with(period: Duration, burst: u32) -> impl Service {
    let config = governor_config(period, burst)
        .key_extractor(ByHeader)
        .finish()
        .unwrap();
    GovernorLayer::new(config).layer(Inner)
}

pub fn governor_by_peer() -> impl Service {
    GovernorLayer::new(
        governor_config(Duration::from_secs(1) / RATE, BURST)
            .finish()
            .unwrap(),
    )
    .layer(Inner)
}

fn governor_config(
    period: Duration,
    burst: u32,
) -> GovernorConfigBuilder<
    tower_governor::key_extractor::PeerIpKeyExtractor,
    governor::middleware::NoOpMiddleware,
> {
    GovernorConfigBuilder::default()
        .const_period(period)
        .const_burst_size(burst)
}

/// As in tower_governor's own example of an extractor.
#[derive(Clone)]
struct ByHeader;

impl KeyExtractor for ByHeader {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let value = request
            .headers()
            .get(FIELD)
            .and_then(|value| value.to_str().ok());
        value
            .map(str::to_owned)
            .ok_or(GovernorError::UnableToExtractKey)
    }
}

pub fn request_with_header() -> Request<()> {
    let mut request = Request::new(());
    request
        .headers_mut()
        .insert(FIELD, HeaderValue::from_static(KEY));
    request
}

pub fn request_with_peer() -> Request<()> {
    let mut request = Request::new(());
    request
        .extensions_mut()
        .insert(ConnectInfo(SocketAddr::from(([192, 168, 100, 200], 54321))));
    request
}

pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// How long a service takes for so many requests, one after the other, once they are there.
pub fn time(
    runtime: &Runtime,
    service: &mut impl Service,
    request: fn() -> Request<()>,
    requests: u64,
    status: StatusCode,
) -> Duration {
    let mut took = Duration::ZERO;
    let mut left = requests;
    runtime.block_on(async {
        while left > 0 {
            let batch: Vec<_> = (0..left.min(BATCH)).map(|_| request()).collect();
            left -= batch.len() as u64;
            let since = Instant::now();
            for request in batch {
                let response = service.ready().await.unwrap().call(request).await.unwrap();
                assert_eq!(response.status(), status);
                black_box(response);
            }
            took += since.elapsed();
        }
    });
    took
}
