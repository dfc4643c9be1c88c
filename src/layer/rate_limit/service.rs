//! The service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;

use super::future::{Granted, ResponseFuture};
use super::hooks::{Cost, Hooks};
use super::layer::Config;
use super::quotas::ChooseQuotas;
use crate::telemetry::Outcome;
use crate::{KeyExtractor, Refusal, Reject};

/// A [`Service`] that asks a bucket before each call; see the [module](super) for the whole story.
pub struct RateLimit<S, K, C, Q, H, R> {
    inner: S,
    config: Arc<Config<K, C, Q, H, R>>,
}

impl<S, K, C, Q, H, R> RateLimit<S, K, C, Q, H, R> {
    pub(super) fn new(inner: S, config: Arc<Config<K, C, Q, H, R>>) -> Self {
        Self { inner, config }
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

    /// The instance that was polled ready, which is the one to call; its clone is not ready yet.
    fn take_ready(&mut self) -> S
    where
        S: Clone,
    {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }

    /// The inner service, unwrapped.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, Req, K, C, Q, H, R> Service<Req> for RateLimit<S, K, C, Q, H, R>
where
    S: Service<Req> + Clone,
    K: KeyExtractor<Req>,
    C: Cost<Req>,
    Q: ChooseQuotas<Req>,
    H: Hooks<Req, S::Response>,
    R: Reject<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, K, C, Q, H, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.config.reject.inner_error(error))
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let config = Arc::clone(&self.config);
        let (key, cost) = match (config.key.extract(&request), config.cost.cost(&request)) {
            (Some(key), cost @ 1..) => (key, cost),
            _ => return ResponseFuture::calling(self.inner.call(request), None, None, config),
        };
        if let Some(quotas) = config.quotas.look_up(&request) {
            let inner = self.take_ready();
            return ResponseFuture::looking_up(quotas, key, cost, inner, request, config);
        }
        let (quotas, settings) = (config.quotas.quotas(&request), &config.settings);
        if let Some(decided) = settings.limiter.at_once(quotas.as_ref(), &key, cost) {
            let outcome = decided.as_ref().map_or_else(Outcome::of_error, Outcome::of);
            let decision = decided.map_err(Refusal::from).and_then(|decision| {
                if decision.is_admitted() {
                    config.hooks.admitted(&decision, &mut request);
                    return Ok(decision);
                }
                config.refused(&request, &key, &decision);
                Err(decision.into())
            });
            settings.limiter.decisions().count(settings.counted(outcome, decision.is_ok()));
            return match decision {
                Err(refusal) if !settings.shadow => ResponseFuture::refused(refusal, config),
                decision => {
                    let granted = decision.ok().map(|decision| Granted { decision, by_share: false });
                    ResponseFuture::calling(self.inner.call(request), Some(key), granted, config)
                }
            };
        }
        let asking = settings.acquire(quotas.as_ref(), key, cost);
        let inner = self.take_ready();
        ResponseFuture::asking(asking, inner, request, config)
    }
}

impl<S: Clone, K, C, Q, H, R> Clone for RateLimit<S, K, C, Q, H, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: Arc::clone(&self.config) }
    }
}

impl<S: fmt::Debug, K, C, Q, H, R> fmt::Debug for RateLimit<S, K, C, Q, H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("settings", &self.config.settings)
            .finish_non_exhaustive()
    }
}
