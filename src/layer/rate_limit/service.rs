//! How the layer handles requests.

use std::sync::Arc;

use tower::Service;

use super::future::{Granted, ResponseFuture};
use super::layer::RateLimitLayer;
use crate::layer::{Middleware, give_up_ready, take_ready};
use crate::telemetry::Outcome;
use crate::{Extracted, KeyExtractor as _, Refusal, Reject};

impl<S, Req, Res, R> Middleware<S, Req> for RateLimitLayer<Req, Res, R>
where
    S: Service<Req, Response = Res> + Clone,
    R: Reject<Res, S::Error>,
{
    type Response = Res;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, R>;

    fn inner_error(&self, error: S::Error) -> R::Error {
        self.config.reject.inner_error(error)
    }

    fn call(self: &Arc<Self>, inner: &mut S, mut request: Req) -> Self::Future {
        let layer = Arc::clone(self);
        let config = &self.config;
        let cost = config.cost(&request);
        if cost == 0 {
            return ResponseFuture::calling(inner.call(request), None, None, layer);
        }
        let extracted = match config.key.extract(&request) {
            Extracted::Ready(Ok(None)) => {
                return ResponseFuture::calling(inner.call(request), None, None, layer);
            }
            Extracted::Ready(Err(error)) => {
                if config.settings.passes_without_key(&error) {
                    return ResponseFuture::calling(inner.call(request), None, None, layer);
                }
                give_up_ready(inner);
                return ResponseFuture::refused(error.into(), layer);
            }
            extracted => extracted,
        };
        let key = match (extracted, config.look_up_quotas(&request)) {
            (Extracted::Ready(Ok(Some(key))), None) => key,
            (key, looked_up) => {
                let quotas = if looked_up.is_none() { config.quotas(&request) } else { None };
                let asked = Box::pin(async move {
                    let Some(key) = key.await? else { return Ok(None) };
                    let quotas = match looked_up {
                        Some(looked_up) => looked_up.await,
                        None => quotas,
                    };
                    Ok(Some((key, quotas)))
                });
                let inner = take_ready(inner);
                return ResponseFuture::looking_up(asked, cost, inner, request, layer);
            }
        };
        let (quotas, settings) = (config.quotas(&request), &config.settings);
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
                Err(refusal) if !settings.shadow => {
                    give_up_ready(inner);
                    ResponseFuture::refused(refusal.of(key), layer)
                }
                decision => {
                    let granted = decision.ok().map(|decision| Granted { decision, by_share: false });
                    ResponseFuture::calling(inner.call(request), Some(key), granted, layer)
                }
            };
        }
        let asking = settings.acquire(quotas.as_ref(), key, cost);
        let inner = take_ready(inner);
        ResponseFuture::asking(asking, inner, request, layer)
    }
}
