//! Rate limits, set up for gRPC.

use http::{Request, Response};

use super::{Refuse, refuse};
use crate::token_bucket::layer::KeyExtractors;
use crate::{KeyExtractor, RateLimitLayer, TokenBucket, TokenBuckets, web};

/// A [`RateLimitLayer`] for gRPC: refusals are statuses. The handler gets the
/// [`Decision`](crate::token_bucket::Decision) as an extension.
///
/// ```
/// use tower_distributed::{Quota, Store, TokenBucket, extract, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "calls", Quota::per_second(100))?;
/// let limit = grpc::rate_limit(bucket, extract::grpc_method().and(extract::client_ip()));
/// # let _: tower_distributed::RateLimitLayer<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, _> = limit.clone();
/// let server = tonic::transport::Server::builder().layer(limit);
/// # Ok(()) }
/// ```
#[must_use]
pub fn rate_limit<B, B2>(
    bucket: TokenBucket,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse> {
    RateLimitLayer::new(bucket, key)
        .on_admit(|decision, request| web::insert_decision(decision, request))
        .reject_with(refuse())
}

/// Several limits over different keys for gRPC: a call is charged to all of them or to none, in one step. As
/// [`web::rate_limits`], with statuses.
#[must_use]
pub fn rate_limits<B, B2, K, const N: usize>(
    limits: TokenBuckets<N>,
    keys: K,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse>
where
    K: KeyExtractors<Request<B>, N> + Send + Sync + 'static,
{
    RateLimitLayer::all_of(limits, keys)
        .on_admit(|decision, request| web::insert_decision(decision, request))
        .reject_with(refuse())
}
