//! How the leases of requests are acquired.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::middleware::at_once;
use crate::telemetry::Decisions;
use crate::{Error, Extracted, Key, Lease};

/// What a request has acquired. `None`: the request passes without it.
pub(crate) type Acquired<G> = Result<Option<G>, Error>;

/// What a request has acquired, or the future that acquires it.
#[expect(
    missing_debug_implementations,
    reason = "it has a future, and cannot be named outside of the crate"
)]
pub enum Acquiring<G> {
    Ready(Acquired<G>),
    Pending(BoxFuture<'static, Acquired<G>>),
}

/// Acquires for a key. The answer of a store in memory to a request that does not wait needs no box.
pub(crate) fn acquire<A: Acquire>(
    from: &A,
    key: Extracted,
    asked: A::Asked,
    max_wait: Option<Duration>,
) -> Acquiring<A::Granted> {
    if from.is_in_memory()
        && max_wait.is_none()
        && let Extracted::Ready(Ok(Some(key))) = &key
        && let Some(acquired) = at_once(pin!(from.acquire(key.clone(), asked, max_wait)))
    {
        return Acquiring::Ready(acquired);
    }
    let from = from.clone();
    Acquiring::Pending(Box::pin(async move {
        let Some(key) = from.decisions().extracted(key.await)? else {
            return Ok(None);
        };
        from.acquire(key, asked, max_wait).await
    }))
}

/// Acquires something for keys.
pub(crate) trait Acquire: Clone + Send + Sync + 'static {
    /// What a request asks for.
    type Asked: Copy + Send + 'static;
    /// What it gets.
    type Granted;

    fn decisions(&self) -> &Decisions;

    fn is_in_memory(&self) -> bool;

    /// Acquires, and counts the decision if it is known. `max_wait` is `None` for a request that does not wait.
    fn acquire(
        &self,
        key: Key,
        asked: Self::Asked,
        max_wait: Option<Duration>,
    ) -> impl Future<Output = Acquired<Self::Granted>> + Send;
}

/// Provides the leases of requests.
pub trait Provide<Req> {
    /// Acquires the lease of a request.
    fn lease(&self, key: Extracted, request: &Req, max_wait: Option<Duration>) -> Acquiring<Lease>;
}
