//! The service of the layers that handle requests under a lease.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;

use super::future::ResponseFuture;
use super::{Config, DynProvide, Hold, UntilResponse};
use crate::layer::take_ready;
use crate::{AsError, Extracted, KeyExtractor as _, Reject};

/// A [`Service`] that handles each request under a lease.
///
/// It is the service of [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer), [`MutexLayer`](crate::MutexLayer)
/// and [`RwLockLayer`](crate::RwLockLayer).
pub struct LeaseService<S, Req, H = UntilResponse, R = AsError> {
    inner: S,
    config: Arc<Config<Req, DynProvide<Req>, H, R>>,
}

impl<S, Req, H, R> LeaseService<S, Req, H, R> {
    pub(super) fn new(inner: S, config: Config<Req, DynProvide<Req>, H, R>) -> Self {
        Self { inner, config: Arc::new(config) }
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

impl<S, Req, H, R> Service<Req> for LeaseService<S, Req, H, R>
where
    S: Service<Req> + Clone,
    H: Hold<S::Response>,
    R: Reject<H::Response, S::Error>,
{
    type Response = H::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, H, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.config.reject.inner_error(error))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let config = Arc::clone(&self.config);
        let key = match config.key.extract(&request) {
            Extracted::Ready(Ok(None)) => return ResponseFuture::passing(self.inner.call(request), config),
            key => key,
        };
        ResponseFuture::asking(key, take_ready(&mut self.inner), request, config)
    }
}

impl<S: Clone, Req, H, R> Clone for LeaseService<S, Req, H, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: Arc::clone(&self.config) }
    }
}

impl<S: fmt::Debug, Req, H, R> fmt::Debug for LeaseService<S, Req, H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
