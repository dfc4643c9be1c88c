//! The functions of [`web`](crate::web). Each makes one layer with its settings for HTTP: refusals are responses, and
//! the handler gets what the layer granted as an extension of the request.

// Passing a generic function as a hook would require bodies to be `'static`; a closure that calls the function does
// not.
#![allow(clippy::redundant_closure)]

use std::convert::Infallible;

use http::{HeaderValue, Method, Request, Response};
use http_body::Body;

#[cfg(feature = "rate-limit")]
use crate::bucket::decision::Decision;
#[cfg(feature = "dedupe")]
use crate::dedupe::Dedupe;
#[cfg(feature = "single-flight")]
use crate::http::answer::Answer;
#[cfg(feature = "single-flight")]
use crate::http::extract::shared_get::SharedGet;
#[cfg(feature = "rate-limit")]
use crate::http::meter::MeterBody;
#[cfg(feature = "rate-limit")]
use crate::http::rate_limit_fields::RateLimitFields;
use crate::http::refuse::{Refuse, refuse};
#[cfg(feature = "single-flight")]
use crate::http::responses::Responses;
use crate::http::until_body_end::UntilBodyEnd;
#[cfg(feature = "rate-limit")]
use crate::layers::budget::{BudgetLayer, Estimate};
#[cfg(feature = "concurrency-limit")]
use crate::layers::concurrency_limit::ConcurrencyLimitLayer;
#[cfg(feature = "dedupe")]
use crate::layers::dedupe::{DedupeLayer, DuplicateAction, Evidence};
#[cfg(feature = "rate-limit")]
use crate::layers::key::Cost;
use crate::layers::key::KeyExtractor;
use crate::layers::lease::OnLease;
#[cfg(feature = "mutex")]
use crate::layers::mutex::MutexLayer;
#[cfg(feature = "rate-limit")]
use crate::layers::rate_limit::RateLimitLayer;
#[cfg(feature = "rate-limit")]
use crate::layers::rate_limit::keys::KeyExtractors;
#[cfg(feature = "rw-lock")]
use crate::layers::rw_lock::RwLockLayer;
#[cfg(feature = "single-flight")]
use crate::layers::single_flight::SingleFlightLayer;
use crate::lease::handle::LeaseHandle;
#[cfg(feature = "mutex")]
use crate::mutex::Mutex;
#[cfg(feature = "rw-lock")]
use crate::rw_lock::{Access, RwLock};
#[cfg(feature = "single-flight")]
use crate::single_flight::SingleFlight;
#[cfg(feature = "rate-limit")]
use crate::token_bucket::TokenBucket;
#[cfg(feature = "rate-limit")]
use crate::token_bucket::hold::Usage;
#[cfg(feature = "rate-limit")]
use crate::token_bucket::limits::TokenBuckets;
#[cfg(feature = "concurrency-limit")]
use crate::wait_group::WaitGroup;

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
/// [`fields`](RateLimitLayer::fields) sets the fields, or leaves them out; [`reject_with`](RateLimitLayer::reject_with)
/// sets the refusals, which keep the fields.
#[cfg(feature = "rate-limit")]
#[must_use]
pub fn rate_limit<B, B2>(
    bucket: TokenBucket,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse> {
    limit_in_http(RateLimitLayer::new(bucket, key))
}

/// Several limits over different keys for HTTP: a request is charged to all of them or to none, in one step. Otherwise
/// like [`rate_limit`]; see [`RateLimitLayer::all_of`].
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
#[cfg(feature = "rate-limit")]
#[must_use]
pub fn rate_limits<B, B2, K, const N: usize>(
    limits: TokenBuckets<N>,
    keys: K,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse>
where
    K: KeyExtractors<Request<B>, N> + Send + Sync + 'static,
{
    limit_in_http(RateLimitLayer::all_of(limits, keys))
}

#[cfg(feature = "rate-limit")]
fn limit_in_http<B, B2>(
    layer: RateLimitLayer<Request<B>, Response<B2>>,
) -> RateLimitLayer<Request<B>, Response<B2>, Refuse> {
    layer
        .fields(RateLimitFields::default())
        .on_admit(|decision, request| insert_decision(decision, request))
        .reject_with(refuse())
}

/// For [`on_admit`](RateLimitLayer::on_admit): inserts the [`Decision`] into the request's extensions, where the
/// handler reads how many tokens remain.
///
/// Requests that pass without a decision have no such extension: requests without a key, and all requests while the
/// store is unavailable under [`StoreFailure::FailOpen`](crate::StoreFailure::FailOpen). So extract an
/// `Option<Extension<Decision>>` with axum.
#[cfg(feature = "rate-limit")]
pub fn insert_decision<B>(decision: &Decision, request: &mut Request<B>) {
    request.extensions_mut().insert(decision.clone());
}

/// A [`BudgetLayer`] for HTTP: it holds `estimate` tokens until the end of the response body, and captures the usage.
///
/// Refusals are responses with `Retry-After`, and all responses have the [RateLimit
/// fields](crate::response::RateLimitFields). The handler gets the [`Usage`] as an extension, and adds to it while it
/// works and streams. To count the data of the response body instead, set a [`MeterBody`].
///
/// ```
/// use axum::{Extension, Router, extract::Request, routing::post};
/// use tower_distributed::token_bucket::Usage;
/// use tower_distributed::{Quota, Store, TokenBucket, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let tokens = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_minute(60_000))?;
/// let budget = web::token_budget(tokens, extract::header("x-tenant")?, |_: &Request| 1200);
/// let complete = async |Extension(usage): Extension<Usage>| {
///     usage.set(831); // from the model's last event
///     "an answer"
/// };
/// let app: Router = Router::new().route("/complete", post(complete)).layer(budget);
/// # Ok(()) }
/// ```
///
/// Requests that pass without a hold have no `Usage`: requests without a key, and all requests while the store is
/// unavailable under [`StoreFailure::FailOpen`](crate::StoreFailure::FailOpen). So extract an
/// `Option<Extension<Usage>>` with axum.
#[cfg(feature = "rate-limit")]
#[must_use]
pub fn token_budget<B>(
    bucket: TokenBucket,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
    estimate: impl Cost<Request<B>> + Send + Sync + 'static,
) -> BudgetLayer<Request<B>, MeterBody, Refuse> {
    budget_in_http(BudgetLayer::new(bucket, key, estimate))
}

/// Budgets of several limits for HTTP, such as requests and tokens per minute: a request holds tokens of all of them or
/// of none, in one step. Otherwise like [`token_budget`]; see [`BudgetLayer::all_of`].
///
/// ```
/// use axum::{Router, extract::Request, routing::post};
/// use tower_distributed::token_bucket::Estimate::{Fixed, Metered};
/// use tower_distributed::{Quota, Store, TokenBucket, TokenBuckets, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let store = Store::in_memory();
/// let limits = TokenBuckets::new([
///     TokenBucket::new(&store, "requests", Quota::per_minute(60))?,
///     TokenBucket::new(&store, "tokens", Quota::per_minute(60_000))?,
/// ])?;
/// let tenant = || extract::header("x-tenant");
/// let estimate = |_: &Request| [Fixed(1), Metered(1200)];
/// let budget = web::token_budgets(limits, (tenant()?, tenant()?), estimate);
/// let app: Router = Router::new().route("/complete", post(async || "an answer")).layer(budget);
/// # Ok(()) }
/// ```
#[cfg(feature = "rate-limit")]
#[must_use]
pub fn token_budgets<B, K, const N: usize>(
    limits: TokenBuckets<N>,
    keys: K,
    estimate: impl Fn(&Request<B>) -> [Estimate; N] + Send + Sync + 'static,
) -> BudgetLayer<Request<B>, MeterBody, Refuse>
where
    K: KeyExtractors<Request<B>, N>,
{
    budget_in_http(BudgetLayer::all_of(limits, keys, estimate))
}

#[cfg(feature = "rate-limit")]
fn budget_in_http<B>(layer: BudgetLayer<Request<B>>) -> BudgetLayer<Request<B>, MeterBody, Refuse> {
    layer
        .on_hold(|usage, request| insert_usage(usage, request))
        .meter(MeterBody::default())
        .reject_with(refuse())
}

/// For [`on_hold`](BudgetLayer::on_hold): inserts the [`Usage`] into the request's extensions, where the handler adds
/// to it.
#[cfg(feature = "rate-limit")]
pub fn insert_usage<B>(usage: &Usage, request: &mut Request<B>) {
    request.extensions_mut().insert(usage.clone());
}

/// A [`ConcurrencyLimitLayer`] for HTTP: permits are held to the end of the response body, refusals are responses.
///
/// The permit is released if the body makes no progress for 60 s: see [`UntilBodyEnd`], which sets other limits. The
/// handler gets a [`LeaseHandle`] as an extension: it can watch its permit, and take it.
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
#[cfg(feature = "concurrency-limit")]
#[must_use]
pub fn concurrency_limit<B: Body + 'static>(
    group: WaitGroup,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> ConcurrencyLimitLayer<Request<B>, UntilBodyEnd, Refuse> {
    let layer = ConcurrencyLimitLayer::new(group, key).watch_no_body();
    #[cfg(feature = "axum")]
    let layer = layer.watch_body_of_type(axum::body::Body::new);
    layer
        .hold(UntilBodyEnd::default())
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// A [`RwLockLayer`] for HTTP: GET, HEAD and OPTIONS are reads, all other methods are writes. Locks are held to the end
/// of the response body. The handler gets a [`LeaseHandle`] as an extension. Refusals are responses.
///
/// If a body makes no progress for 60 s, its lock is released and the body goes on without it: see [`UntilBodyEnd`],
/// which sets other limits, and [`LeaseEnd::Abort`](crate::response::LeaseEnd::Abort) for bodies that must not outlive
/// their lock.
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
#[cfg(feature = "rw-lock")]
#[must_use]
pub fn rw_lock<B>(
    lock: RwLock,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RwLockLayer<Request<B>, UntilBodyEnd, Refuse> {
    RwLockLayer::new(lock, key)
        .access(|request| access_by_method(request))
        .hold(UntilBodyEnd::default())
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// For [`access`](RwLockLayer::access): GET, HEAD and OPTIONS are reads, all other methods are writes.
#[cfg(feature = "rw-lock")]
#[must_use]
pub fn access_by_method<B>(request: &Request<B>) -> Access {
    match *request.method() {
        Method::GET | Method::HEAD | Method::OPTIONS => Access::Read,
        _ => Access::Write,
    }
}

/// A [`MutexLayer`] for HTTP: locks are held to the end of the response body, the handler gets a [`LeaseHandle`] as an
/// extension, refusals are responses. The rules for bodies are those of [`rw_lock`].
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
#[cfg(feature = "mutex")]
#[must_use]
pub fn mutex<B>(
    mutex: Mutex,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> MutexLayer<Request<B>, UntilBodyEnd, Refuse> {
    MutexLayer::new(mutex, key)
        .hold(UntilBodyEnd::default())
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// Inserts a [`LeaseHandle`] into the request's extensions. With it, the handler reads its fencing token, learns when
/// the lease is lost, and can [take](LeaseHandle::take) the permit of a [`ConcurrencyLimitLayer`], or the lock of a
/// [`MutexLayer`] or [`RwLockLayer`].
///
/// Requests that pass without a lease have no such extension: requests without a key, and requests that a layer lets
/// through while the store is unavailable. If that can happen, extract an `Option<Extension<LeaseHandle>>` with axum.
#[derive(Clone, Copy, Debug, Default)]
pub struct InsertLease;

impl<B> OnLease<Request<B>> for InsertLease {
    fn on_lease(&self, lease: &LeaseHandle, request: &mut Request<B>) {
        let lease = lease.within(request.extensions().get());
        request.extensions_mut().insert(lease);
    }
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
/// let layer = web::single_flight(flight, extract::shared_get().ignore_field("x-app-version")?);
/// let app: Router = Router::new().route("/prices", get(async || "all of them")).layer(layer);
/// # Ok(()) }
/// ```
///
/// [`shared_get`](crate::extract::shared_get) checks the requests. GET and HEAD take part, unless they have a body,
/// credentials, conditions, a header field that is not [known to be
/// harmless](crate::extract::shared_get#fields-that-are-harmless), or the like. All other requests are handled alone.
/// Method, scheme, host, path, query, and the header fields from which services take the target of a request are part
/// of every key.
///
/// **A response must not reach another user.** A request with a field of your own is handled alone, until you name the
/// field with [`ignore_field`](SharedGet::ignore_field), because no response depends on it. This crate cannot see
/// client certificates and addresses: if they matter, add them to the key with [`SharedGet::new`]. Tokens in the query
/// are part of the key.
///
/// **A client must not change the responses of other clients.** If another header field changes a response, name it in
/// `Vary`, add it to the key, or remove it from requests that come from outside.
///
/// To share private responses among the requests of one user, add the user to the key and do not check the requests:
/// `SingleFlightLayer::new(flight, key).capture(Responses::default()).reject_with(refuse())`.
#[cfg(feature = "single-flight")]
#[must_use]
pub fn single_flight<B, K>(
    flight: SingleFlight<Answer>,
    key: SharedGet<K>,
) -> SingleFlightLayer<Request<B>, Answer, Infallible, Responses, Refuse>
where
    SharedGet<K>: KeyExtractor<Request<B>> + Send + Sync + 'static,
{
    SingleFlightLayer::new(flight, key)
        .capture(Responses::default())
        .reject_with(refuse())
}

/// Creates a [`DedupeLayer`] for HTTP.
///
/// An item counts as handled if the response is a [success](is_handled). The handler gets a [`LeaseHandle`] of its
/// claim as an extension. Refusals are responses.
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_distributed::{Dedupe, Store, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let week = std::time::Duration::from_secs(7 * 86_400);
/// let webhooks = Dedupe::exact(&Store::in_memory(), "webhooks").remember_for(week).build()?;
/// let once = web::dedupe(webhooks, extract::header("webhook-id")?);
/// let app: Router = Router::new().route("/webhook", post(async || "handled")).layer(once);
/// # Ok(()) }
/// ```
///
/// # The response to a duplicate
///
/// Senders of webhooks repeat a message until it is answered with a 2xx. The layer answers:
///
/// | the item | response |
/// |---|---|
/// | was handled, by [exact mode](Dedupe::exact) or by [`confirm_duplicate`](DedupeLayer::confirm_duplicate) | 200 with `duplicate: ?1` and no body: the duplicate is [acknowledged](acknowledge_duplicate) |
/// | was handled, by a filter only | 409: if the filter is wrong, a 200 would lose the message silently |
/// | is being handled elsewhere | 409 with `Retry-After` |
///
/// [`on_duplicate`](DedupeLayer::on_duplicate) sets another rule, for example that a repeated order gets 409 rather
/// than 200:
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_distributed::dedupe::DuplicateAction;
/// use tower_distributed::{Dedupe, Store, extract, web};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let week = std::time::Duration::from_secs(7 * 86_400);
/// let orders = Dedupe::exact(&Store::in_memory(), "orders").remember_for(week).build()?;
/// let once = web::dedupe(orders, extract::header("x-order-id")?).on_duplicate(|_, _| DuplicateAction::Refuse);
/// let app: Router = Router::new().route("/orders", post(async || "placed")).layer(once);
/// # Ok(()) }
/// ```
///
/// # A sender that gives up
///
/// Senders of webhooks give up after some seconds. If the handler may take longer, call [`go_on`](DedupeLayer::go_on):
/// the handler then runs to its end even if the sender has left, and the next attempt is a duplicate. Without it, each
/// attempt starts the handler again, and none completes.
///
/// # Authenticate the sender first
///
/// While a message is being handled, other messages with the same id are refused. So put the layer that
/// authenticates the sender *outside* of this layer. Otherwise a sender that guesses an id can block the genuine
/// message while the forged one is handled. If the handler refuses the forged message, this is not a success, and
/// the id is not a duplicate.
///
/// If several senders share the layer, make the authenticated sender a part of the key. Otherwise one sender can
/// use up the ids of another:
///
/// ```
/// # use tower_distributed::{Dedupe, Store, extract, web};
/// #[derive(Clone)]
/// struct Sender(String); // inserted by an outer layer that authenticates
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// # let day = std::time::Duration::from_secs(86_400);
/// # let webhooks = Dedupe::exact(&Store::in_memory(), "webhooks").remember_for(day).build()?;
/// let sender = extract::extension(|sender: &Sender| sender.0.clone());
/// let once = web::dedupe(webhooks, (sender, extract::header("webhook-id")?));
/// let app: axum::Router = axum::Router::new().layer(once);
/// # Ok(()) }
/// ```
#[cfg(feature = "dedupe")]
#[must_use]
pub fn dedupe<B, B2: Default, E>(
    dedupe: Dedupe,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> DedupeLayer<Request<B>, Response<B2>, E, Refuse> {
    DedupeLayer::new(dedupe, key)
        .success(|outcome| is_handled(outcome))
        .on_duplicate(|request, evidence| acknowledge_duplicate(request, evidence))
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// Returns whether an item was handled: its response has a 2xx. For [`success`](DedupeLayer::success), and the default
/// of [`dedupe`].
///
/// After every other response the item can be sent again: a 401 for a forged message, a 404 before a route is
/// deployed, a redirect, or a refusal of one of this crate's layers further inside. To accept other responses too,
/// pass a closure to [`success`](DedupeLayer::success).
#[cfg(feature = "dedupe")]
#[must_use]
pub fn is_handled<B, E>(outcome: &Result<Response<B>, E>) -> bool {
    outcome
        .as_ref()
        .is_ok_and(|response| response.status().is_success())
}

/// Answers certain duplicates with 200, and refuses the others. The default of [`dedupe`].
///
/// A duplicate is certain by [exact mode](Dedupe::exact) or by
/// [`confirm_duplicate`](DedupeLayer::confirm_duplicate). The response has the header `duplicate: ?1` (a boolean of
/// RFC 9651) and no body. A duplicate that only the filter reports is refused.
#[cfg(feature = "dedupe")]
#[must_use]
pub fn acknowledge_duplicate<Req, B: Default>(
    _: Req,
    evidence: Evidence,
) -> DuplicateAction<Req, Response<B>> {
    if evidence == Evidence::Filter {
        return DuplicateAction::Refuse;
    }
    let mut response = Response::new(B::default());
    response
        .headers_mut()
        .insert("duplicate", HeaderValue::from_static("?1"));
    DuplicateAction::Answer(response)
}

/// The request extension that [`mark_duplicate`] inserts: the item was handled before. It may be wrong if only a
/// filter reports the duplicate.
#[cfg(feature = "dedupe")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duplicate;

/// Passes duplicates to the handler, with [`Duplicate`] as an extension. Pass it to
/// [`on_duplicate`](DedupeLayer::on_duplicate).
#[cfg(feature = "dedupe")]
#[must_use]
pub fn mark_duplicate<B, Res>(
    mut request: Request<B>,
    _: Evidence,
) -> DuplicateAction<Request<B>, Res> {
    request.extensions_mut().insert(Duplicate);
    DuplicateAction::Pass(request)
}

#[cfg(all(test, feature = "concurrency-limit", feature = "dedupe"))]
mod tests {
    use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};

    use super::*;
    use crate::store::Store;

    /// The handler sees its claim, and can take the permit of the layer around it.
    #[tokio::test]
    async fn a_claim_does_not_hide_a_permit_that_can_be_taken() {
        let store = Store::in_memory();
        let group = WaitGroup::new(&store, "jobs", 1).unwrap();
        let once = Dedupe::exact(&store, "seen")
            .remember_for(std::time::Duration::from_secs(60))
            .build()
            .unwrap();
        let handler = service_fn(async |request: Request<()>| {
            let handle = request.extensions().get::<LeaseHandle>().unwrap();
            assert_ne!(handle.key(), &"all".into());
            Ok::<_, BoxError>((handle.take(), handle.take().is_none()))
        });
        let handler = DedupeLayer::new(once, |_: &Request<()>| "7")
            .on_lease(InsertLease)
            .layer(handler);
        let limit = ConcurrencyLimitLayer::new(group.clone(), |_: &Request<()>| "all")
            .on_lease(InsertLease);
        let (lease, is_once) = limit
            .layer(handler)
            .oneshot(Request::new(()))
            .await
            .unwrap();
        assert_eq!((lease.unwrap().key(), is_once), (&"all".into(), true));
    }
}
