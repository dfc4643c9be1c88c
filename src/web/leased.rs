//! Permits and locks, set up for HTTP.

#[cfg(feature = "rw-lock")]
use http::Method;
use http::Request;

use crate::lease::layer::{LeaseSlot, OnLease};
use crate::response::{Refuse, UntilBodyEnd, refuse};
#[cfg(feature = "rw-lock")]
use crate::rw_lock::Access;
#[cfg(feature = "rw-lock")]
use crate::rw_lock::layer::ChooseAccess;
#[cfg(feature = "concurrency-limit")]
use crate::{ConcurrencyLimitLayer, WaitGroup};
use crate::{KeyExtractor, LeaseHandle};
#[cfg(feature = "mutex")]
use crate::{Mutex, MutexLayer};
#[cfg(feature = "rw-lock")]
use crate::{RwLock, RwLockLayer};

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
#[cfg(feature = "concurrency-limit")]
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
#[cfg(feature = "rw-lock")]
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
#[cfg(feature = "mutex")]
#[must_use]
pub fn mutex<B>(
    mutex: Mutex,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> MutexLayer<Request<B>, UntilBodyEnd, Refuse> {
    MutexLayer::new(mutex, key).hold(UntilBodyEnd::default()).on_lease(InsertLease).reject_with(refuse())
}

/// GET, HEAD and OPTIONS read, all else writes.
#[cfg(feature = "rw-lock")]
#[derive(Clone, Copy, Debug, Default)]
pub struct ByMethod;

#[cfg(feature = "rw-lock")]
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
