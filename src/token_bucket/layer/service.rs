//! How the layer handles requests.

use std::sync::Arc;

use tower::Service;

use super::chosen::ChosenQuotas;
use super::future::{Passing, ResponseFuture, State};
use super::settings::RateLimitLayer;
use crate::middleware::{Middleware, give_up_ready, take_ready};
use crate::telemetry::Outcome;
use crate::token_bucket::limiter::Begun;
use crate::{Error, Extracted, Reject};

impl<S, Req, Res, R> Middleware<S, Req> for RateLimitLayer<Req, Res, R>
where
    S: Service<Req, Response = Res> + Clone,
    R: Reject<Res, S::Error>,
{
    type Response = Res;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, R>;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn call(self: &Arc<Self>, inner: &mut S, request: Req) -> Self::Future {
        let state = self.begin(inner, request);
        let is_over = matches!(
            state,
            State::Calling {
                passing: Passing::Unlimited,
                ..
            }
        );
        ResponseFuture {
            layer: (!is_over).then(|| Arc::clone(self)),
            state,
        }
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Decides a request, or starts to.
    fn begin<S: Service<Req> + Clone>(&self, inner: &mut S, mut request: Req) -> State<S, Req> {
        let (settings, cost) = (&self.settings, self.cost_of(&request));
        if cost == 0 {
            return State::unlimited(inner, request);
        }
        let rows = match self.rows_of(&request) {
            Ok(rows) => rows,
            Err(error) => return self.undecided(inner, request, error),
        };
        let key = match self.key_of(&request, &rows) {
            Extracted::Ready(Ok(Some(key))) => key,
            Extracted::Ready(Ok(None)) => return State::unlimited(inner, request),
            Extracted::Ready(Err(error)) => return self.undecided(inner, request, error),
            pending => {
                let (limiter, quotas) = (settings.limiter.clone(), self.quotas_of(&request, rows));
                let asked = async move {
                    let Some(key) = pending.await? else {
                        return Ok(None);
                    };
                    let quotas = limiter.learned_or(&key, cost, quotas).get().await?;
                    Ok(Some((key, quotas)))
                };
                return State::looking_up(Box::pin(asked), cost, inner, request);
            }
        };
        let quotas = match settings
            .limiter
            .learned_or(&key, cost, self.quotas_of(&request, rows))
        {
            ChosenQuotas::Ready(Ok(quotas)) => quotas,
            ChosenQuotas::Ready(Err(error)) => return self.undecided(inner, request, error),
            pending => {
                let asked = async move { Ok(Some((key, pending.get().await?))) };
                return State::looking_up(Box::pin(asked), cost, inner, request);
            }
        };
        let is_read = !self.hooks.are_unread();
        let (decided, key) = match settings.limiter.begin(quotas.as_ref(), key, cost, is_read) {
            Begun::Admitted => {
                settings.limiter.decisions().count(Outcome::Admitted);
                return State::unlimited(inner, request);
            }
            Begun::Decided(decided, key) => (decided, key),
            Begun::Pending(acquire) => return State::asking(acquire, take_ready(inner), request),
        };
        let outcome = decided.as_ref().map_or_else(Outcome::of_error, Outcome::of);
        match self.settle(decided.map(Some), outcome, key, &mut request) {
            Ok(passing) => State::Calling {
                future: inner.call(request),
                passing,
            },
            Err(refusal) => {
                give_up_ready(inner);
                State::Refused {
                    refusal: Some(refusal),
                }
            }
        }
    }

    /// What becomes of a request whose key or quotas cannot be had.
    fn undecided<S: Service<Req> + Clone>(
        &self,
        inner: &mut S,
        request: Req,
        error: Error,
    ) -> State<S, Req> {
        if self.settings.passes_undecided(&error) {
            return State::unlimited(inner, request);
        }
        give_up_ready(inner);
        State::Refused {
            refusal: Some(error.into()),
        }
    }
}
