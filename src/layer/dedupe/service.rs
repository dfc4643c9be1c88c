//! The service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;

use super::future::ResponseFuture;
use super::{Config, ConfirmDuplicate, IsSuccess, OnDuplicate};
use crate::leased::OnLease;
use crate::{KeyExtractor, Reject};

/// The [`Service`] of a [`DedupeLayer`](super::DedupeLayer).
pub struct Deduped<S, K, U, D, Q, N, R> {
    inner: S,
    config: Arc<Config<K, U, D, Q, N, R>>,
}

impl<S, K, U, D, Q, N, R> Deduped<S, K, U, D, Q, N, R> {
    pub(super) fn new(inner: S, config: Config<K, U, D, Q, N, R>) -> Self {
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

impl<S, Req, K, U, D, Q, N, R> Service<Req> for Deduped<S, K, U, D, Q, N, R>
where
    S: Service<Req> + Clone,
    K: KeyExtractor<Req>,
    U: IsSuccess<S::Response, S::Error>,
    D: OnDuplicate<Req, S::Response>,
    Q: ConfirmDuplicate<Req>,
    N: OnLease<Req>,
    R: Reject<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, K, U, D, Q, N, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.config.reject.inner_error(error))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let config = Arc::clone(&self.config);
        let Some(key) = config.key.extract(&request) else {
            return ResponseFuture::passing(self.inner.call(request), config);
        };
        // The instance that was polled ready is the one to call; its clone is not ready yet.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        ResponseFuture::claiming(key, inner, request, config)
    }
}

impl<S: Clone, K, U, D, Q, N, R> Clone for Deduped<S, K, U, D, Q, N, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: Arc::clone(&self.config) }
    }
}

impl<S: fmt::Debug, K, U, D, Q, N, R> fmt::Debug for Deduped<S, K, U, D, Q, N, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deduped")
            .field("inner", &self.inner)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
