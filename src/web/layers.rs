//! The layers, set up for HTTP.

use std::convert::Infallible;

use http::{Method, Request, Response};

use crate::extract::SharedGet;
use crate::lease::layer::{LeaseSlot, OnLease};
use crate::response::{Answer, RateLimitFields, Refuse, Responses, UntilBodyEnd, refuse};
use crate::rw_lock::Access;
use crate::rw_lock::layer::ChooseAccess;
use crate::token_bucket::Decision;
use crate::token_bucket::layer::{KeyExtractors, OnAdmit};
use crate::{
    ConcurrencyLimitLayer, KeyExtractor, LeaseHandle, Mutex, MutexLayer, RateLimitLayer, RwLock, RwLockLayer,
    SingleFlight, SingleFlightLayer, TokenBucket, TokenBuckets, WaitGroup,
};

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
    layer.fields(RateLimitFields::default()).on_admit(InsertDecision).reject_with(refuse())
}

/// A [`ConcurrencyLimitLayer`] for HTTP: permits are held to the end of the response body, refusals are responses.
///
/// A body that makes no progress for 60 s gives its permit back: see [`UntilBodyEnd`], which sets other limits. The
/// handler gets a [`LeaseHandle`] and a [`LeaseSlot`] as extensions: it can watch its permit, and take it along.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_distributed::{Store, WaitGroup, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
/// let limit = web::concurrency_limit(exports, extract::client_ip()).max_wait(Duration::from_secs(10));
/// let app: Router = Router::new().route("/export", get(async || "all of it")).layer(limit);
/// # Ok(()) }
/// ```
#[must_use]
pub fn concurrency_limit<B>(
    group: WaitGroup,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> ConcurrencyLimitLayer<Request<B>, UntilBodyEnd, Refuse> {
    ConcurrencyLimitLayer::new(group, key)
        .hold(UntilBodyEnd::default())
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// A [`RwLockLayer`] for HTTP: GET, HEAD and OPTIONS read, all else writes; locks are held to the end of the response
/// body, the handler gets a [`LeaseHandle`] and a [`LeaseSlot`] as extensions, refusals are responses.
///
/// A body that makes no progress for 60 s gives its lock back and goes on without it: see [`UntilBodyEnd`], which sets
/// other limits, and [`LeaseEnd::Abort`](crate::response::LeaseEnd::Abort) for bodies that must not outlive their lock.
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tower_distributed::{LeaseHandle, RwLock, Store, extract, web};
///
/// async fn write(Extension(lease): Extension<LeaseHandle>) -> String {
///     format!("written with fence {:?}", lease.fence())
/// }
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let documents = RwLock::new(&Store::in_memory(), "documents")?;
/// let lock = web::rw_lock(documents, extract::path());
/// let app: Router = Router::new().route("/document/{id}", get(async || "text").put(write)).layer(lock);
/// # Ok(()) }
/// ```
#[must_use]
pub fn rw_lock<B>(
    lock: RwLock,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RwLockLayer<Request<B>, UntilBodyEnd, Refuse> {
    RwLockLayer::new(lock, key)
        .access(ByMethod)
        .hold(UntilBodyEnd::default())
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// A [`MutexLayer`] for HTTP: locks are held to the end of the response body, the handler gets a [`LeaseHandle`] and a
/// [`LeaseSlot`] as extensions, refusals are responses. Bodies are as of [`rw_lock`].
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_distributed::{Mutex, Store, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bills = Mutex::new(&Store::in_memory(), "bills")?;
/// let app: Router =
///     Router::new().route("/bill/{user}", post(async || "billed")).layer(web::mutex(bills, extract::path()));
/// # Ok(()) }
/// ```
#[must_use]
pub fn mutex<B>(
    mutex: Mutex,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> MutexLayer<Request<B>, UntilBodyEnd, Refuse> {
    MutexLayer::new(mutex, key).hold(UntilBodyEnd::default()).on_lease(InsertLease).reject_with(refuse())
}

/// A [`SingleFlightLayer`] for HTTP: [responses are shared](Responses) with their bodies, refusals are responses.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_distributed::{SingleFlight, Store, extract, response::AnswerCodec, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let flight = SingleFlight::builder(AnswerCodec).ttl(Duration::from_millis(100));
/// let flight = flight.build(&Store::in_memory(), "prices")?;
/// let layer = web::single_flight(flight, extract::shared_get().private_if("x-session")?);
/// let app: Router = Router::new().route("/prices", get(async || "all of them")).layer(layer);
/// # Ok(()) }
/// ```
///
/// [`shared_get`](crate::extract::shared_get) checks the requests. GET and HEAD take part, unless they have a body,
/// credentials, conditions, one of the listed header fields that name a user, or the like. All others are answered by
/// themselves. Method, scheme, host, path, query, and the fields by which services choose what they answer for are part of
/// every key.
///
/// **A response must not reach another user.** If your service identifies users by header fields that are not
/// [listed](crate::extract::shared_get), name each of them with [`private_if`](SharedGet::private_if). This crate cannot see
/// client certificates and addresses: if they matter, add them to the key with [`SharedGet::new`]. Tokens in the query are
/// part of the key.
///
/// **A client must not change what others get.** If another header field changes a response, name it in `Vary`, add it to the
/// key, or remove it from requests that come from outside.
///
/// To share private responses among the requests of one user, add the user to the key and do not check the requests:
/// `SingleFlightLayer::new(flight, key).capture(Responses::default()).reject_with(refuse())`.
#[must_use]
pub fn single_flight<B, K>(
    flight: SingleFlight<Answer>,
    key: SharedGet<K>,
) -> SingleFlightLayer<Request<B>, Answer, Infallible, Responses, Refuse>
where
    SharedGet<K>: KeyExtractor<Request<B>> + Send + Sync + 'static,
{
    SingleFlightLayer::new(flight, key).capture(Responses::default()).reject_with(refuse())
}

/// GET, HEAD and OPTIONS read, all else writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByMethod;

impl<B> ChooseAccess<Request<B>> for ByMethod {
    fn access(&self, request: &Request<B>) -> Access {
        match *request.method() {
            Method::GET | Method::HEAD | Method::OPTIONS => Access::Read,
            _ => Access::Write,
        }
    }
}

/// Puts a [`LeaseHandle`] among the request's extensions, for the handler to read its fencing token and to hear when
/// it is lost; and of a [`ConcurrencyLimitLayer`], [`MutexLayer`] or [`RwLockLayer`] also a [`LeaseSlot`], for the handler to take the
/// lease along.
///
/// What passes without a lease has none there: requests without a key, and those that are let through while the
/// store is away. So ask axum for an `Option<Extension<LeaseHandle>>` where that may be.
#[derive(Clone, Copy, Debug, Default)]
pub struct InsertLease;

impl<B> OnLease<Request<B>> for InsertLease {
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Request<B>) {
        request.extensions_mut().insert(lease.clone());
    }

    fn on_slot(&self, lease: &LeaseHandle, slot: &LeaseSlot, request: &mut Request<B>) {
        self.on_lease(lease, request);
        request.extensions_mut().insert(slot.clone());
    }
}

/// Puts the [`Decision`] among the request's extensions, for the handler to read what remains.
///
/// What passes without a decision has none there: requests without a key, and all of them while the store is away
/// under [`StoreFailure::FailOpen`](crate::StoreFailure::FailOpen). So ask axum for an `Option<Extension<Decision>>`.
#[derive(Clone, Copy, Debug, Default)]
pub struct InsertDecision;

impl<B> OnAdmit<Request<B>> for InsertDecision {
    fn on_admit(&self, decision: &Decision, request: &mut Request<B>) {
        request.extensions_mut().insert(decision.clone());
    }
}
