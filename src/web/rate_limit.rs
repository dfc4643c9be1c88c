//! Rate limits, set up for HTTP.

use http::{Request, Response};

use crate::response::{RateLimitFields, Refuse, refuse};
use crate::token_bucket::Decision;
use crate::token_bucket::layer::KeyExtractors;
use crate::{KeyExtractor, RateLimitLayer, TokenBucket, TokenBuckets};

/// A [`RateLimitLayer`] for HTTP: refusals are responses with `Retry-After`, and all responses have the
/// [RateLimit fields](crate::response::RateLimitFields). The handler gets the [`Decision`] as an extension.
///
/// ```
/// use axum::{Router, extract::Request, response::Response, routing::get};
/// use tower_distributed::{Error, Quota, RateLimitLayer, Store, TokenBucket, extract, response, web};
///
/// fn limit(store: &Store) -> Result<RateLimitLayer<Request, Response, response::Refuse>, Error> {
///     let bucket = TokenBucket::new(store, "api", Quota::per_second(5).burst(10))?;
///     Ok(web::rate_limit(bucket, extract::client_ip()))
/// }
///
/// # fn main() -> Result<(), Error> {
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(limit(&Store::in_memory())?);
/// # Ok(()) }
/// ```
///
/// Requests that cannot be admitted now are refused, unless they may [wait](RateLimitLayer::max_wait).
/// [`fields`](RateLimitLayer::fields) sets the fields, or leaves them out; [`reject_with`](RateLimitLayer::reject_with) sets
/// the refusals, which keep the fields.
#[must_use]
pub fn rate_limit<B, B2>(
    bucket: TokenBucket,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse> {
    in_http(RateLimitLayer::new(bucket, key))
}

/// Several limits over different keys for HTTP: a request is charged to all of them or to none, in one step. As
/// [`rate_limit`], and [`RateLimitLayer::all_of`].
///
/// ```
/// use axum::{Router, extract::Request, routing::get};
/// use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let store = Store::in_memory();
/// let limits = TokenBuckets::new([
///     TokenBucket::new(&store, "clients", Quota::per_second(10))?,
///     TokenBucket::new(&store, "all", Quota::per_second(1000))?,
/// ])?;
/// let limit = web::rate_limits(limits, (extract::client_ip(), |_: &Request| "all"));
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(limit);
/// # Ok(()) }
/// ```
#[must_use]
pub fn rate_limits<B, B2, K, const N: usize>(
    limits: TokenBuckets<N>,
    keys: K,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse>
where
    K: KeyExtractors<Request<B>, N> + Send + Sync + 'static,
{
    in_http(RateLimitLayer::all_of(limits, keys))
}

fn in_http<B, B2>(
    layer: RateLimitLayer<Request<B>, Response<B2>>,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse> {
    layer
        .fields(RateLimitFields::default())
        .on_admit(|decision, request| insert_decision(decision, request))
        .reject_with(refuse())
}

/// For [`on_admit`](RateLimitLayer::on_admit): puts the [`Decision`] among the request's extensions, for the handler to
/// read what remains.
///
/// What passes without a decision has none there: requests without a key, and all of them while the store is away
/// under [`StoreFailure::FailOpen`](crate::StoreFailure::FailOpen). So ask axum for an `Option<Extension<Decision>>`.
pub fn insert_decision<B>(decision: &Decision, request: &mut Request<B>) {
    request.extensions_mut().insert(decision.clone());
}
