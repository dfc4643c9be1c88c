//! Reader-writer locks, set up for HTTP.

use http::{Method, Request};

use super::InsertLease;
use crate::response::{Refuse, UntilBodyEnd, refuse};
use crate::rw_lock::Access;
use crate::{KeyExtractor, RwLock, RwLockLayer};

/// A [`RwLockLayer`] for HTTP: GET, HEAD and OPTIONS read, all else writes; locks are held to the end of the response
/// body, the handler gets a [`LeaseHandle`](crate::LeaseHandle) as an extension, refusals are responses.
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
        .access(|request| access_by_method(request))
        .hold(UntilBodyEnd::default())
        .on_lease(InsertLease)
        .reject_with(refuse())
}

/// For [`access`](RwLockLayer::access): GET, HEAD and OPTIONS read, all else writes.
#[must_use]
pub fn access_by_method<B>(request: &Request<B>) -> Access {
    match *request.method() {
        Method::GET | Method::HEAD | Method::OPTIONS => Access::Read,
        _ => Access::Write,
    }
}
