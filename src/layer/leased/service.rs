//! The service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;

use super::future::ResponseFuture;
use super::{Config, Hold, OnLease, Provide};
use crate::{KeyExtractor, Reject};

/// A [`Service`] that handles each request under a lease.
pub struct Leased<S, K, P, H, N, R> {
    inner: S,
    config: Arc<Config<K, P, H, N, R>>,
}

impl<S, K, P, H, N, R> Leased<S, K, P, H, N, R> {
    pub(crate) fn new(inner: S, config: Config<K, P, H, N, R>) -> Self {
        Self { inner, config: Arc::new(config) }
    }

    /// The inner service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to be changed.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, unwrapped.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, Req, K, P, H, N, R> Service<Req> for Leased<S, K, P, H, N, R>
where
    S: Service<Req> + Clone,
    K: KeyExtractor<Req>,
    P: Provide<Req>,
    H: Hold<S::Response>,
    N: OnLease<Req>,
    R: Reject<H::Response, S::Error>,
{
    type Response = H::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, K, P, H, N, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.config.reject.inner_error(error))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let config = Arc::clone(&self.config);
        let Some(key) = config.key.extract(&request) else {
            return ResponseFuture::passing(self.inner.call(request), config);
        };
        let leasing = config.provide.lease(key, &request);
        // The instance that was polled ready is the one to call; its clone is not ready yet.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        ResponseFuture::asking(leasing, inner, request, config)
    }
}

impl<S: Clone, K, P, H, N, R> Clone for Leased<S, K, P, H, N, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: Arc::clone(&self.config) }
    }
}

impl<S: fmt::Debug, K, P: fmt::Debug, H, N, R> fmt::Debug for Leased<S, K, P, H, N, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased")
            .field("inner", &self.inner)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
