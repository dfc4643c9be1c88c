//! The service of a layer, and how it calls the inner service. The layers, their key extractors and their refusals are
//! in submodules.

#[cfg(feature = "rate-limit")]
pub(crate) mod budget;
#[cfg(feature = "concurrency-limit")]
pub(crate) mod concurrency_limit;
#[cfg(feature = "dedupe")]
pub(crate) mod dedupe;
pub(crate) mod extract;
pub(crate) mod key;
pub(crate) mod lease;
#[cfg(feature = "mutex")]
pub(crate) mod mutex;
#[cfg(feature = "rate-limit")]
pub(crate) mod rate_limit;
pub(crate) mod refusal;
#[cfg(feature = "rw-lock")]
pub(crate) mod rw_lock;
#[cfg(feature = "single-flight")]
pub(crate) mod single_flight;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use derive_where::derive_where;
use futures_util::FutureExt as _;
use tokio::task::coop::has_budget_remaining;
use tower::Service;

/// The [`Service`] of a layer `L` of this crate, around the service `S`.
///
/// It can be named, so a struct can hold it:
///
/// ```
/// use std::convert::Infallible;
/// use std::pin::Pin;
/// use tower::{Layer, Service, ServiceExt, util::BoxCloneSyncService};
/// use tower_distributed::{Layered, Quota, RateLimitLayer, Store, TokenBucket};
///
/// type Sender = BoxCloneSyncService<String, (), Infallible>;
///
/// struct Mailer {
///     send: Layered<Sender, RateLimitLayer<String, ()>>,
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_second(5))?;
/// let limit = RateLimitLayer::new(bucket, |address: &String| address.clone());
/// let send = tower::service_fn(async |_: String| Ok(()));
/// let mut mailer = Mailer { send: limit.layer(Sender::new(send)) };
/// mailer.send.ready().await?.call("ann@example.com".into()).await?;
/// # Ok(()) }
/// ```
///
/// The inner service must be `Clone`. It is ready when this service is.
#[derive(Debug)]
#[derive_where(Clone; S)]
pub struct Layered<S, L> {
    inner: S,
    layer: Arc<L>,
}

/// How a layer handles the requests of its service.
pub trait Middleware<S: Service<Req>, Req> {
    /// The response of the layer's service.
    type Response;
    /// The error of the layer's service.
    type Error;
    /// The future of a response.
    type Future: Future<Output = Result<Self::Response, Self::Error>>;

    /// Converts an error of the inner service.
    fn inner_error(error: S::Error) -> Self::Error;

    /// Handles a request. `inner` was polled ready.
    fn call(self: &Arc<Self>, inner: &mut S, request: Req) -> Self::Future;
}

impl<S, L> Layered<S, L> {
    pub(crate) fn new(inner: S, layer: impl Into<Arc<L>>) -> Self {
        Self {
            inner,
            layer: layer.into(),
        }
    }

    /// Returns a reference to the inner service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, L, Req> Service<Req> for Layered<S, L>
where
    S: Service<Req> + Clone,
    L: Middleware<S, Req>,
{
    type Response = L::Response;
    type Error = L::Error;
    type Future = L::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(L::inner_error)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        self.layer.call(&mut self.inner, request)
    }
}

/// Takes the instance that was polled ready, which must be the one that is called. The clone that replaces it is not
/// ready yet.
pub(crate) fn take_ready<S: Clone>(inner: &mut S) -> S {
    let clone = inner.clone();
    std::mem::replace(inner, clone)
}

/// Drops the instance that was polled ready, because it will not be called. Such an instance can hold a resource that
/// other requests wait for, such as a permit of tower's `ConcurrencyLimit`.
pub(crate) fn discard_ready<S: Clone>(inner: &mut S) {
    drop(take_ready(inner));
}

/// A closure of the user that chooses something for a request.
pub(crate) type Choose<Req, T> = Arc<dyn Fn(&Req) -> T + Send + Sync>;

/// Returns the output of `asked` if it is ready at the first poll. An operation on an in-memory store that does not
/// wait is ready at once, so its future need not be stored. `None`: the future has to wait, for example because the
/// task's budget is spent. It is then dropped, which withdraws its operation, and the caller starts the operation
/// again.
pub(crate) fn at_once<F: Future>(asked: Pin<&mut F>) -> Option<F::Output> {
    if has_budget_remaining() {
        asked.now_or_never()
    } else {
        None
    }
}
