//! The layers, set up for gRPC.

use http::Request;
#[cfg(any(feature = "dedupe", feature = "rate-limit"))]
use http::Response;

#[cfg(feature = "dedupe")]
use super::IsHandled;
use super::{Refuse, refuse};
use crate::response::UntilBodyEnd;
#[cfg(feature = "rate-limit")]
use crate::token_bucket::layer::KeyExtractors;
#[cfg(feature = "concurrency-limit")]
use crate::{ConcurrencyLimitLayer, WaitGroup};
#[cfg(feature = "dedupe")]
use crate::{Dedupe, DedupeLayer};
use crate::{KeyExtractor, web};
#[cfg(feature = "mutex")]
use crate::{Mutex, MutexLayer};
#[cfg(feature = "rate-limit")]
use crate::{RateLimitLayer, TokenBucket, TokenBuckets};
#[cfg(feature = "rw-lock")]
use crate::{RwLock, RwLockLayer};

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
#[cfg(feature = "rate-limit")]
#[must_use]
pub fn rate_limit<B, B2>(
    bucket: TokenBucket,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse> {
    RateLimitLayer::new(bucket, key).on_admit(web::InsertDecision).reject_with(refuse())
}

/// Several limits over different keys for gRPC: a call is charged to all of them or to none, in one step. As
/// [`web::rate_limits`], with statuses.
#[cfg(feature = "rate-limit")]
#[must_use]
pub fn rate_limits<B, B2, K, const N: usize>(
    limits: TokenBuckets<N>,
    keys: K,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse>
where
    K: KeyExtractors<Request<B>, N> + Send + Sync + 'static,
{
    RateLimitLayer::all_of(limits, keys).on_admit(web::InsertDecision).reject_with(refuse())
}

/// A [`ConcurrencyLimitLayer`] for gRPC: a permit is held to the end of the call, which for a streaming call is the end of
/// its stream; refusals are statuses. The handler gets a [`LeaseHandle`](crate::LeaseHandle) as an extension.
///
/// A stream that is silent for 60 s goes on without its permit, which the event `body_outlived_lease` reports: see
/// [`UntilBodyEnd::idle_timeout`].
///
/// ```
/// use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup, extract, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
/// let limit = grpc::concurrency_limit(exports, extract::grpc_method());
/// # let _: ConcurrencyLimitLayer<http::Request<tonic::body::Body>, _, _> = limit.clone();
/// let server = tonic::transport::Server::builder().layer(limit);
/// # Ok(()) }
/// ```
#[cfg(feature = "concurrency-limit")]
#[must_use]
pub fn concurrency_limit<B>(
    group: WaitGroup,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> ConcurrencyLimitLayer<Request<B>, UntilBodyEnd, Refuse> {
    web::concurrency_limit(group, key).reject_with(refuse())
}

/// A [`MutexLayer`] for gRPC: the lock is held to the end of the call, refusals are statuses. As [`concurrency_limit`].
///
/// ```
/// use tower_distributed::{Mutex, MutexLayer, Store, extract, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let accounts = Mutex::new(&Store::in_memory(), "accounts")?;
/// let lock = grpc::mutex(accounts, extract::header("x-account")?);
/// # let _: MutexLayer<http::Request<tonic::body::Body>, _, _> = lock.clone();
/// let server = tonic::transport::Server::builder().layer(lock);
/// # Ok(()) }
/// ```
#[cfg(feature = "mutex")]
#[must_use]
pub fn mutex<B>(
    mutex: Mutex,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> MutexLayer<Request<B>, UntilBodyEnd, Refuse> {
    web::mutex(mutex, key).reject_with(refuse())
}

/// A [`RwLockLayer`] for gRPC: locks are held to the end of the call, refusals are statuses. All calls write, unless
/// [`access`](RwLockLayer::access) says which ones read:
///
/// ```
/// use tower_distributed::{RwLock, Store, extract::header, grpc, rw_lock::Access};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let documents = RwLock::new(&Store::in_memory(), "documents")?;
/// let layer = grpc::rw_lock(documents, header("x-document")?).access(|call: &http::Request<tonic::body::Body>| {
///     if call.uri().path().ends_with("/Get") { Access::Read } else { Access::Write }
/// });
/// let server = tonic::transport::Server::builder().layer(layer);
/// # Ok(()) }
/// ```
#[cfg(feature = "rw-lock")]
#[must_use]
pub fn rw_lock<B>(
    lock: RwLock,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RwLockLayer<Request<B>, UntilBodyEnd, Refuse> {
    RwLockLayer::new(lock, key).hold(UntilBodyEnd::default()).on_lease(web::InsertLease).reject_with(refuse())
}

/// A [`DedupeLayer`] for gRPC: a call was handled where its response [has no error](IsHandled) in its head, refusals are
/// statuses, duplicates are refused with `ALREADY_EXISTS`. The handler gets a [`LeaseHandle`](crate::LeaseHandle) of its
/// claim as an extension.
///
/// ```
/// use tower_distributed::{Dedupe, DedupeLayer, Store, extract, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let day = std::time::Duration::from_secs(86_400);
/// let orders = Dedupe::exact(&Store::in_memory(), "orders").remember_for(day).build()?;
/// let once = grpc::dedupe(orders, extract::header("x-order-id")?);
/// # let _: DedupeLayer<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, std::convert::Infallible, _> = once.clone();
/// # Ok(()) }
/// ```
#[cfg(feature = "dedupe")]
#[must_use]
pub fn dedupe<B, B2, E>(
    dedupe: Dedupe,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> DedupeLayer<Request<B>, Response<B2>, E, Refuse> {
    DedupeLayer::new(dedupe, key).success(IsHandled).on_lease(web::InsertLease).reject_with(refuse())
}
