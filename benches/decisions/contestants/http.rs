//! The two layers, each around a service that answers at once. A caller has one service and asks it with a new
//! request for each decision.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode};
use redis_032::aio::MultiplexedConnection;
use tower::{Layer, Service, ServiceExt};
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, extract, response};
use tower_rate_limit_redis::KeyResolver;

use super::Contestant;
use crate::layer::stacks::Inner;

const FIELD: &str = "x-api-key";

#[derive(Clone)]
pub struct Layered<S>(S);

pub fn ours(store: &Store, quota: Quota) -> impl Contestant {
    let bucket = TokenBucket::new(store, "bench", quota).unwrap();
    let layer = RateLimitLayer::new(bucket, extract::header(FIELD).unwrap().plain())
        .cache_refusals(false)
        .fields(response::RateLimitFields::default())
        .reject_with(response::refuse());
    Layered(layer.layer(Inner))
}

pub async fn connect(url: &str) -> MultiplexedConnection {
    redis_032::Client::open(url)
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap()
}

pub fn theirs(connection: MultiplexedConnection, burst: u16) -> impl Contestant {
    let layer = tower_rate_limit_redis::RateLimitLayer::builder()
        .conn(connection)
        .key_resolver(ByField)
        .capacity(burst)
        .emission_interval(Duration::from_millis(1))
        .build();
    Layered(layer.layer(Inner))
}

#[derive(Clone)]
struct ByField;

impl KeyResolver for ByField {
    type Key = Vec<u8>;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> Result<Self::Key, Response<Body>> {
        let missing = || {
            Response::builder()
                .status(StatusCode::BAD_REQUEST)
                .body(Body::empty())
                .unwrap()
        };
        request
            .headers()
            .get(FIELD)
            .map(|value| value.as_bytes().to_vec())
            .ok_or_else(missing)
    }
}

impl<S> Contestant for Layered<S>
where
    S: Service<Request<()>, Response = Response<Body>, Error: fmt::Debug, Future: Send>
        + Clone
        + Send
        + 'static,
{
    async fn admits(&mut self, key: &'static str) -> bool {
        let mut request = Request::new(());
        request
            .headers_mut()
            .insert(FIELD, HeaderValue::from_static(key));
        match self
            .0
            .ready()
            .await
            .unwrap()
            .call(request)
            .await
            .unwrap()
            .status()
        {
            StatusCode::OK => true,
            StatusCode::TOO_MANY_REQUESTS => false,
            other => panic!("answered {other}"),
        }
    }
}
