//! Reader-writer locks, set up for gRPC.

use http::Request;

use super::{Refuse, refuse};
use crate::response::UntilBodyEnd;
use crate::{KeyExtractor, RwLock, RwLockLayer, web};

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
#[must_use]
pub fn rw_lock<B>(
    lock: RwLock,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> RwLockLayer<Request<B>, UntilBodyEnd, Refuse> {
    RwLockLayer::new(lock, key)
        .hold(UntilBodyEnd::default())
        .on_lease(web::InsertLease)
        .reject_with(refuse())
}
