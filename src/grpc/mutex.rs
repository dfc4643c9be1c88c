//! Mutexes, set up for gRPC.

use http::Request;

use super::{Refuse, refuse};
use crate::response::UntilBodyEnd;
use crate::{KeyExtractor, Mutex, MutexLayer, web};

/// A [`MutexLayer`] for gRPC: the lock is held to the end of the call, refusals are statuses. As
/// [`concurrency_limit`](crate::grpc::concurrency_limit).
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
#[must_use]
pub fn mutex<B>(
    mutex: Mutex,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
) -> MutexLayer<Request<B>, UntilBodyEnd, Refuse> {
    web::mutex(mutex, key).reject_with(refuse())
}
