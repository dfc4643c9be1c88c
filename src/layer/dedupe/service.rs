//! The service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;

use super::Config;
use super::future::ResponseFuture;
use crate::layer::take_ready;
use crate::{AsError, Extracted, KeyExtractor as _, Reject};

/// The [`Service`] of a [`DedupeLayer`](super::DedupeLayer).
pub struct DedupeService<S, Req, Res, E, R = AsError> {
    inner: S,
    config: Arc<Config<Req, Res, E, R>>,
}

impl<S, Req, Res, E, R> DedupeService<S, Req, Res, E, R> {
    pub(super) fn new(inner: S, config: Config<Req, Res, E, R>) -> Self {
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

impl<S, Req, Res, E, R> Service<Req> for DedupeService<S, Req, Res, E, R>
where
    S: Service<Req, Response = Res, Error = E> + Clone,
    R: Reject<Res, E>,
{
    type Response = Res;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.config.reject.inner_error(error))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let config = Arc::clone(&self.config);
        let extracted = config.key.extract(&request);
        if let Extracted::Ready(Ok(None)) = extracted {
            return ResponseFuture::passing(self.inner.call(request), config);
        }
        let inner = take_ready(&mut self.inner);
        match extracted {
            Extracted::Ready(Ok(Some(key))) => ResponseFuture::claiming(key, inner, request, config),
            extracted => ResponseFuture::extracting(extracted, inner, request, config),
        }
    }
}

impl<S: Clone, Req, Res, E, R> Clone for DedupeService<S, Req, Res, E, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: Arc::clone(&self.config) }
    }
}

impl<S: fmt::Debug, Req, Res, E, R> fmt::Debug for DedupeService<S, Req, Res, E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupeService")
            .field("inner", &self.inner)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
