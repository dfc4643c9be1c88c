//! The service of all layers.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use derive_where::derive_where;
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

/// What a layer does with the requests of its service.
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

/// Takes the instance that was polled ready, which is the one to call. Its clone, which stays, is not ready yet.
pub(crate) fn take_ready<S: Clone>(inner: &mut S) -> S {
    let clone = inner.clone();
    std::mem::replace(inner, clone)
}

/// Drops the instance that was polled ready, because it is not called. It may hold what others wait for, such as a permit
/// of tower's `ConcurrencyLimit`.
pub(crate) fn give_up_ready<S: Clone>(inner: &mut S) {
    drop(take_ready(inner));
}
