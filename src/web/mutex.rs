//! Mutexes, set up for HTTP.

use http::Request;

use super::InsertLease;
use crate::response::{Refuse, UntilBodyEnd, refuse};
use crate::{KeyExtractor, Mutex, MutexLayer};

/// A [`MutexLayer`] for HTTP: locks are held to the end of the response body, the handler gets a
/// [`LeaseHandle`](crate::LeaseHandle) as an extension, refusals are responses. Bodies are as of [`rw_lock`](crate::web::rw_lock).
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
    MutexLayer::new(mutex, key)
        .hold(UntilBodyEnd::default())
        .on_lease(InsertLease)
        .reject_with(refuse())
}
