//! The response future of a [`RateLimitLayer`].

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;
use tokio::task::coop::consume_budget;
use tower::Service;

use crate::bucket::decision::Decision;
use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::key::Key;
use crate::layers::rate_limit::{RateLimitLayer, Settings};
use crate::layers::refusal::{Refusal, Reject};
use crate::layers::take_ready;
use crate::store::failure::StoreFailurePolicy;
use crate::telemetry::Outcome;
use crate::token_bucket::limiter::Acquire;

pin_project! {
    /// The future of a [`RateLimitLayer`]'s service.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, R>
    where
        S: Service<Req>,
    {
        // `None`: only the call of the inner service is left.
        pub(super) layer: Option<Arc<RateLimitLayer<Req, S::Response, R>>>,
        #[pin]
        pub(super) state: State<S, Req>,
    }
}

/// How a request passes.
pub(super) enum Passing {
    /// Without a limit, or no hook reads the decision.
    Unlimited,
    /// Without a decision.
    Undecided(Key),
    /// The decision has the key. `by_share`: the local share of this process decided. Boxed, because most layers do not
    /// need it.
    Admitted {
        decision: Box<Decision>,
        by_share: bool,
    },
}

/// The future that looks up a key and its quotas. `None`: the request passes without a limit.
pub(super) type LookedUp = BoxFuture<'static, Result<Option<(Key, Option<Quotas>)>, Error>>;

/// The state while the store decides. It is boxed, so that requests with an immediate decision need no space for
/// it.
pub(super) struct Asking<S, Req> {
    acquire: Acquire,
    /// The outage of the store, if `acquire` uses this process's local share.
    outage: Option<Error>,
    /// The ready service and the request; `None` after the call.
    call: Option<(S, Req)>,
}

pin_project! {
    #[project = StateProjection]
    pub(super) enum State<S, Req>
    where
        S: Service<Req>,
    {
        LookingUp {
            asked: LookedUp,
            cost: u32,
            // The ready service and the request; `None` after the lookup.
            call: Option<Box<(S, Req)>>,
        },
        Asking {
            asking: Box<Asking<S, Req>>,
        },
        Refused {
            // `None` after it was returned.
            refusal: Option<Refusal>,
        },
        Calling {
            #[pin]
            future: S::Future,
            passing: Passing,
        },
    }
}

impl<S: Service<Req>, Req> State<S, Req> {
    pub(super) fn looking_up(asked: LookedUp, cost: u32, inner: &mut S, request: Req) -> Self
    where
        S: Clone,
    {
        Self::LookingUp {
            asked,
            cost,
            call: Some(Box::new((take_ready(inner), request))),
        }
    }

    pub(super) fn asking(acquire: Acquire, inner: S, request: Req) -> Self {
        Self::Asking {
            asking: Box::new(Asking {
                acquire,
                outage: None,
                call: Some((inner, request)),
            }),
        }
    }

    /// Calls the inner service for a request that passes without a limit.
    pub(super) fn unlimited(inner: &mut S, request: Req) -> Self {
        Self::Calling {
            future: inner.call(request),
            passing: Passing::Unlimited,
        }
    }
}

impl<S, Req> Asking<S, Req> {
    /// Polls the decision of the store, or of the local share after an outage. `None`: the request passes without a
    /// decision.
    fn poll_decision(
        &mut self,
        settings: &Settings,
        context: &mut Context<'_>,
    ) -> Poll<(Result<Option<Decision>, Error>, Outcome)> {
        loop {
            let error = match ready!(Pin::new(&mut self.acquire).poll(context)) {
                Ok(decision) => {
                    let by_share = decision.is_admitted() && self.outage.is_some();
                    let outcome = if by_share {
                        Outcome::LocalShare
                    } else {
                        Outcome::of(&decision)
                    };
                    return Poll::Ready((Ok(Some(decision)), outcome));
                }
                Err(error) => error,
            };
            return Poll::Ready(match (&settings.on_store_failure, self.outage.take()) {
                // The burst of the local share is below the cost.
                (_, Some(outage)) if !error.is_overloaded() => (Err(outage), Outcome::FailedClosed),
                (StoreFailurePolicy::FailOpen, None) if error.is_away() => {
                    (Ok(None), Outcome::FailedOpen)
                }
                (StoreFailurePolicy::LocalShare(local), None) if error.is_away() => {
                    self.acquire.ask_share(local);
                    self.outage = Some(error);
                    continue;
                }
                _ => {
                    let outcome = Outcome::of_error(&error);
                    (Err(error), outcome)
                }
            });
        }
    }
}

impl<S, Req, R> Future for ResponseFuture<S, Req, R>
where
    S: Service<Req>,
    R: Reject<S::Response, S::Error>,
{
    type Output = Result<S::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let layer = this.layer.as_deref();
        loop {
            match this.state.as_mut().project() {
                StateProjection::LookingUp { asked, cost, call } => {
                    let asked = ready!(asked.as_mut().poll(context));
                    let (Some(call), Some(layer)) = (call.take(), layer) else {
                        return Poll::Pending;
                    };
                    let (settings, (mut inner, request)) = (&layer.settings, *call);
                    let next = match asked {
                        Ok(Some((key, quotas))) => {
                            let acquire = settings.limiter.acquire(quotas.as_ref(), key, *cost);
                            State::asking(acquire, inner, request)
                        }
                        Err(error) if !settings.passes_undecided(&error) => {
                            return Poll::Ready(layer.refuse::<S::Error>(error.into()));
                        }
                        Ok(None) | Err(_) => State::unlimited(&mut inner, request),
                    };
                    this.state.set(next);
                }
                StateProjection::Asking { asking } => {
                    let Some(layer) = layer.filter(|_| asking.call.is_some()) else {
                        return Poll::Pending;
                    };
                    let (decision, outcome) =
                        ready!(asking.poll_decision(&layer.settings, context));
                    let Some((mut inner, mut request)) = asking.call.take() else {
                        return Poll::Pending;
                    };
                    let key = asking.acquire.take_key();
                    match layer.settle(decision, outcome, key, &mut request) {
                        Ok(passing) => {
                            let future = inner.call(request);
                            this.state.set(State::Calling { future, passing });
                        }
                        Err(refusal) => return Poll::Ready(layer.refuse::<S::Error>(refusal)),
                    }
                }
                StateProjection::Refused { refusal } => {
                    // Yields to other tasks now and then, because this path never waits.
                    ready!(pin!(consume_budget()).poll(context));
                    let (Some(refusal), Some(layer)) = (refusal.take(), layer) else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(layer.refuse::<S::Error>(refusal));
                }
                StateProjection::Calling { future, passing } => {
                    let mut answered = ready!(future.poll(context)).map_err(R::inner_error);
                    if let (Ok(response), Some(layer)) = (&mut answered, layer) {
                        layer.answered(passing, response);
                    }
                    return Poll::Ready(answered);
                }
            }
        }
    }
}

debug!(ResponseFuture<S: Service<Req>, Req, R>);
