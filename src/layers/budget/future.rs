//! The response future of a [`BudgetLayer`]: authorizes, calls the inner service, and hands the hold to the meter.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;
use tower::Service;

use crate::error::Error;
use crate::layers::budget::{BudgetHold, BudgetLayer, Meter, authorize};
use crate::layers::refusal::{Refusal, Reject, refused};
use crate::layers::{Middleware, take_ready};

pin_project! {
    /// The future of a [`BudgetLayer`]'s service.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, M, R>
    where
        S: Service<Req>,
    {
        layer: Arc<BudgetLayer<Req, M, R>>,
        #[pin]
        state: State<S, Req>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        Authorizing {
            authorizing: BoxFuture<'static, Result<Option<BudgetHold>, Error>>,
            // The ready service and the request. `None` after the call.
            call: Option<(S, Req)>,
        },
        // If it is dropped, the inner future goes first. Then the hold has all of its usage.
        Calling {
            #[pin]
            future: S::Future,
            // `None` if the request passed without a hold.
            hold: Option<BudgetHold>,
        },
        Done,
    }
}

impl<S, Req, M, R> Middleware<S, Req> for BudgetLayer<Req, M, R>
where
    S: Service<Req> + Clone,
    M: Meter<S::Response>,
    R: Reject<M::Response, S::Error>,
{
    type Response = M::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, M, R>;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn call(self: &Arc<Self>, inner: &mut S, request: Req) -> Self::Future {
        let estimates = (self.estimate)(&request);
        let authorizing = Box::pin(authorize(
            self.limits.clone(),
            self.on_store_failure.clone(),
            self.limits.key_of(&self.keys, &request, |first| first),
            estimates,
        ));
        let state = State::Authorizing {
            authorizing,
            call: Some((take_ready(inner), request)),
        };
        ResponseFuture {
            layer: Arc::clone(self),
            state,
        }
    }
}

impl<S, Req, M, R> Future for ResponseFuture<S, Req, M, R>
where
    S: Service<Req>,
    M: Meter<S::Response>,
    R: Reject<M::Response, S::Error>,
{
    type Output = Result<M::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let layer = &**this.layer;
        loop {
            match this.state.as_mut().project() {
                StateProjection::Authorizing { authorizing, call } => {
                    let authorized = ready!(authorizing.as_mut().poll(context));
                    let Some((mut inner, mut request)) = call.take() else {
                        return Poll::Pending;
                    };
                    let next = match authorized {
                        Ok(hold) => {
                            let costs_estimate = layer.broken_costs_estimate;
                            let hold = hold.map(|hold| hold.broken_costs_estimate(costs_estimate));
                            if let Some(hold) = &hold {
                                layer
                                    .on_hold
                                    .iter()
                                    .for_each(|told| told(hold.usage(), &mut request));
                            }
                            State::Calling {
                                future: inner.call(request),
                                hold,
                            }
                        }
                        Err(error) => {
                            this.state.set(State::Done);
                            return Poll::Ready(
                                layer.refuse::<S::Response, S::Error>(error.into()),
                            );
                        }
                    };
                    this.state.set(next);
                }
                StateProjection::Calling { future, hold } => {
                    let outcome = ready!(future.poll(context));
                    let hold = hold.take();
                    this.state.set(State::Done);
                    return Poll::Ready(match outcome {
                        Ok(response) => Ok(layer.meter.meter(response, hold)),
                        Err(error) => {
                            if let Some(hold) = hold {
                                layer.meter.failed(hold);
                            }
                            Err(R::inner_error(error))
                        }
                    });
                }
                StateProjection::Done => return Poll::Pending,
            }
        }
    }
}

impl<Req, M, R> BudgetLayer<Req, M, R> {
    fn refuse<Res, E>(&self, refusal: Refusal) -> Result<M::Response, R::Error>
    where
        M: Meter<Res>,
        R: Reject<M::Response, E>,
    {
        let kept = refusal.clone();
        let mut response = refused(&self.reject, refusal)?;
        if let Some(decision) = kept.decision() {
            self.meter.refused(decision, &mut response);
        }
        Ok(response)
    }
}

debug!(ResponseFuture<S: Service<Req>, Req, M, R>);
