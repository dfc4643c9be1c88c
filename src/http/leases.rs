//! The layers that hold leases, set up for HTTP.

use std::convert::Infallible;

use http::{Method, Request};

use super::{Answer, Checked, Refuse, Responses, UntilBodyEnd, refuse};
use crate::concurrency_limit::SameLimit;
use crate::leased::{LeaseSlot, OnLease};
use crate::rate_limit::OneToken;
use crate::rw_lock::Access;
use crate::rw_lock_layer::ChooseAccess;
use crate::{
    ConcurrencyLimitLayer, Error, LeaseHandle, Mutex, MutexLayer, RwLock, RwLockLayer, SingleFlight,
    SingleFlightLayer, WaitGroup,
};

/// A [`ConcurrencyLimitLayer`] for HTTP: permits are held to the end of the response body, refusals are responses.
///
/// A body that makes no progress for 60 s gives its permit back: see [`UntilBodyEnd`], which sets other limits. With
/// `.on_lease(InsertLease)` the handler can watch its permit and take it along: see [`LeaseSlot`].
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_distributed::{Store, WaitGroup, http as limits};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 2)?;
/// let limit = limits::concurrency_limit(exports, limits::path()).wait_up_to(Duration::from_secs(10));
/// let app: Router = Router::new().route("/export", get(async || "all of it")).layer(limit);
/// # Ok(()) }
/// ```
pub fn concurrency_limit<K>(
    group: WaitGroup,
    key: K,
) -> ConcurrencyLimitLayer<K, OneToken, SameLimit, UntilBodyEnd, (), Refuse> {
    ConcurrencyLimitLayer::new(group, key).hold(UntilBodyEnd::default()).reject_with(refuse())
}

/// A [`RwLockLayer`] for HTTP: GET, HEAD and OPTIONS read, all else writes; locks are held to the end of the response
/// body, the handler gets a [`LeaseHandle`] and a [`LeaseSlot`] as extensions, refusals are responses.
///
/// A body that makes no progress for 60 s gives its lock back and goes on without it: see [`UntilBodyEnd`], which sets
/// other limits, and [`LeaseEnd::Abort`](super::LeaseEnd::Abort) for bodies that must not outlive their lock.
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tower_distributed::{LeaseHandle, RwLock, Store, http as limits};
///
/// async fn write(Extension(lease): Extension<LeaseHandle>) -> String {
///     format!("written with fence {:?}", lease.fence())
/// }
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let documents = RwLock::new(&Store::in_memory(), "documents")?;
/// let lock = limits::rw_lock(documents, limits::path());
/// let app: Router = Router::new().route("/document/{id}", get(async || "text").put(write)).layer(lock);
/// # Ok(()) }
/// ```
pub fn rw_lock<K>(lock: RwLock, key: K) -> RwLockLayer<K, ByMethod, UntilBodyEnd, InsertLease, Refuse> {
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
/// use tower_distributed::{Mutex, Store, http as limits};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bills = Mutex::new(&Store::in_memory(), "bills")?;
/// let app: Router =
///     Router::new().route("/bill/{user}", post(async || "billed")).layer(limits::mutex(bills, limits::path()));
/// # Ok(()) }
/// ```
pub fn mutex<K>(mutex: Mutex, key: K) -> MutexLayer<K, UntilBodyEnd, InsertLease, Refuse> {
    MutexLayer::new(mutex, key).hold(UntilBodyEnd::default()).on_lease(InsertLease).reject_with(refuse())
}

/// A [`SingleFlightLayer`] for HTTP: [responses are shared](Responses) with their bodies, refusals are responses.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_distributed::{SingleFlight, Store, http as limits};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let flight = SingleFlight::builder(limits::AnswerCodec).life(Duration::from_millis(100));
/// let flight = flight.build(&Store::in_memory(), "prices")?;
/// let layer = limits::single_flight(flight, limits::path_and_query()).private_if("x-api-key")?;
/// let app: Router = Router::new().route("/prices", get(async || "all of them")).layer(layer);
/// # Ok(()) }
/// ```
///
/// Whatever the key is, requests are [checked](Checked): those take part that may be shared by what HTTP itself knows, which
/// are GET and HEAD without a body, credentials, conditions and the like, and all others are answered by themselves. Method,
/// scheme, host, path, query, and the fields by which services choose what they answer for are part of every key.
///
/// **Nobody may get what is another's.** Name all else that your service knows users by
/// ([`private_if`](SingleFlightLayer::private_if)): fields of your own, such as `x-api-key`, or what a proxy before you adds.
/// Client certificates and addresses cannot be seen here: where they matter, put them into the key by a closure. Tokens in
/// the query are part of the key, and so safe.
///
/// Nor may anybody choose what others get. Whichever other field changes a response must be in its `Vary`, be part of the
/// key, or not reach you from outside.
///
/// To share what is one user's among requests of that user, put the user into the key, and leave the check out:
/// `SingleFlightLayer::new(flight, key).capture(Responses::default()).reject_with(refuse())`.
pub fn single_flight<K>(
    flight: SingleFlight<Answer>,
    key: K,
) -> SingleFlightLayer<Checked<K>, Answer, Infallible, Responses, (), Refuse> {
    SingleFlightLayer::new(flight, Checked::new(key)).capture(Responses::default()).reject_with(refuse())
}

impl<K, A, F, C, N, R> SingleFlightLayer<Checked<K>, A, F, C, N, R> {
    /// As [`Checked::private_if`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn private_if(self, field: &str) -> Result<Self, Error> {
        self.try_map_key(|key| key.private_if(field))
    }

    /// As [`Checked::ignore_cookies`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn ignore_cookies<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        self.try_map_key(|key| key.ignore_cookies(names))
    }

    /// As [`Checked::allow_no_cache`].
    #[must_use]
    pub fn allow_no_cache(self) -> Self {
        self.map_key(Checked::allow_no_cache)
    }
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
