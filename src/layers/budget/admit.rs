//! How a [`BudgetLayer`] handles a request: it authorizes the estimate, and hands the hold to the meter.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use tower::Service;

use crate::error::Error;
use crate::layers::budget::{BudgetHold, BudgetLayer, Estimates, Meter, hold};
use crate::layers::key::Extracted;
use crate::layers::refusal::{Refusal, Reject, refused};
use crate::layers::{Answer, Finish, NextState, Policy, Stages, State};
use crate::store::failure::StoreFailurePolicy;
use crate::token_bucket::limiter::Limiter;

/// The hold of a request while the inner service handles it. `None`: the request passed without a hold.
pub struct Held<L> {
    hold: Option<BudgetHold>,
    layer: Arc<L>,
}

debug!(Held<L>, hold);

impl<Req, M, R> Stages for BudgetLayer<Req, M, R> {
    type Waiting = BoxFuture<'static, Result<Option<BudgetHold>, Error>>;
    type Held = Held<Self>;
}

impl<S, Req, M, R> Policy<S, Req> for BudgetLayer<Req, M, R>
where
    S: Service<Req> + Clone,
    M: Meter<S::Response>,
    R: Reject<S::Response, S::Error>,
{
    type Response = M::Response;
    type Error = R::Error;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn begin(self: &Arc<Self>, inner: &mut S, request: Req) -> NextState<Self, S, Req> {
        let settings = &self.settings;
        let authorizing = Box::pin(authorize(
            settings.limits.clone(),
            settings.on_store_failure.clone(),
            settings
                .limits
                .key_of(&settings.keys, &request, |first| first),
            (settings.estimate)(&request),
        ));
        State::waiting(self, authorizing, inner, request)
    }

    fn poll_waiting(
        self: &Arc<Self>,
        authorizing: &mut Self::Waiting,
        call: &mut Option<(S, Req)>,
        context: &mut Context<'_>,
    ) -> Poll<NextState<Self, S, Req>> {
        let authorized = ready!(authorizing.as_mut().poll(context));
        let Some((mut inner, mut request)) = call.take() else {
            return Poll::Pending;
        };
        let hold = match authorized {
            Ok(hold) => hold,
            Err(error) => {
                let answer = self.refuse::<S::Response, S::Error>(error.into());
                return Poll::Ready(State::answered(answer));
            }
        };
        let settings = &self.settings;
        let hold = hold.map(|hold| hold.broken_costs_estimate(settings.broken_costs_estimate));
        if let Some(hold) = &hold {
            for hook in &settings.on_hold {
                hook(hold.usage(), &mut request);
            }
        }
        let layer = Arc::clone(self);
        Poll::Ready(State::calling(&mut inner, request, Held { hold, layer }))
    }

    fn finish(
        held: Held<Self>,
        outcome: Result<S::Response, S::Error>,
    ) -> Finish<Answer<Self, S, Req>> {
        let Held { hold, layer } = held;
        Finish::Now(match outcome {
            Ok(response) => Ok(layer.meter.meter(response, hold)),
            Err(error) => {
                if let Some(hold) = hold {
                    layer.meter.failed(hold);
                }
                Err(R::inner_error(error))
            }
        })
    }
}

/// Holds the estimates for a key. `None`: the request passes without a hold.
async fn authorize(
    limits: Limiter,
    away: StoreFailurePolicy<Limiter>,
    key: Extracted,
    estimates: Estimates,
) -> Result<Option<BudgetHold>, Error> {
    let decisions = limits.decisions();
    let Some(key) = decisions.extracted(key.await)? else {
        return Ok(None);
    };
    let asked = hold(&limits, key.clone(), &estimates).await;
    let local = async |local: Limiter, outage| {
        let held = hold(&local.standing_in_for(&limits), key, &estimates).await;
        // The estimate exceeds the burst of the local share: the request is refused because of the outage.
        held.map_err(|refusal: Error| {
            if refusal.is_exceeds_limit() {
                outage
            } else {
                refusal
            }
        })
    };
    decisions.settle(away.settle(asked, local).await)
}

impl<Req, M, R> BudgetLayer<Req, M, R> {
    fn refuse<Res, E>(&self, refusal: Refusal) -> Result<M::Response, R::Error>
    where
        M: Meter<Res>,
        R: Reject<Res, E>,
    {
        let kept = refusal.clone();
        let response = refused(&self.reject, refusal)?;
        let mut response = self.meter.meter(response, None);
        if let Some(decision) = kept.decision() {
            self.meter.refused(decision, &mut response);
        }
        Ok(response)
    }
}
