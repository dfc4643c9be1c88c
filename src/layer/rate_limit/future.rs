//! The response future.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;
use tokio::task::coop::consume_budget;
use tower::Service;

use super::hooks::Afterwards;
use super::layer::RateLimitLayer;
use super::limiter;
use crate::layer::away::Away;
use crate::primitive::token_bucket::Decision;
use crate::telemetry::Outcome;
use crate::{Admission, Error, Key, Quotas, Refusal, Reject};

pin_project! {
    /// The future of a [`RateLimitLayer`]'s service.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, R>
    where
        S: Service<Req>,
    {
        layer: Arc<RateLimitLayer<Req, S::Response, R>>,
        #[pin]
        state: State<S, Req>,
    }
}

/// The decision that admitted a request.
pub(super) struct Granted {
    pub(super) decision: Decision,
    /// Whether this process decided with its local share.
    pub(super) by_share: bool,
}

/// The lookup of a key and its quotas. `None`: the request passes without a limit.
pub(super) type LookedUp = BoxFuture<'static, Result<Option<(Key, Option<Quotas>)>, Error>>;

/// The state while the key or the quotas are looked up.
struct LookingUp<S, Req> {
    asked: LookedUp,
    /// The cost, the ready service and the request; `None` after the lookup.
    then: Option<(u32, S, Req)>,
}

/// The state while the store is asked. It is boxed, so that requests with an immediate decision need no space for
/// it.
struct Asking<S, Req> {
    acquire: limiter::Asking,
    /// The outage of the store, if `acquire` uses this process's local share.
    outage: Option<Error>,
    /// The ready service and the request; `None` after the call.
    call: Option<(S, Req)>,
}

pin_project! {
    #[project = StateProjection]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        LookingUp {
            looking: Box<LookingUp<S, Req>>,
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
            // `None` for a request that passes without a limit.
            key: Option<Key>,
            // `None` for a request without a decision.
            granted: Option<Granted>,
        },
    }
}

impl<S, Req> Asking<S, Req> {
    fn new(acquire: limiter::Asking, inner: S, request: Req) -> Box<Self> {
        Box::new(Self { acquire, outage: None, call: Some((inner, request)) })
    }
}

impl<S, Req, R> ResponseFuture<S, Req, R>
where
    S: Service<Req>,
{
    pub(super) fn calling(
        future: S::Future,
        key: Option<Key>,
        granted: Option<Granted>,
        layer: Arc<RateLimitLayer<Req, S::Response, R>>,
    ) -> Self {
        Self { layer, state: State::Calling { future, key, granted } }
    }

    pub(super) fn looking_up(
        asked: LookedUp,
        cost: u32,
        inner: S,
        request: Req,
        layer: Arc<RateLimitLayer<Req, S::Response, R>>,
    ) -> Self {
        let looking = Box::new(LookingUp { asked, then: Some((cost, inner, request)) });
        Self { layer, state: State::LookingUp { looking } }
    }

    pub(super) fn refused(refusal: Refusal, layer: Arc<RateLimitLayer<Req, S::Response, R>>) -> Self {
        Self { layer, state: State::Refused { refusal: Some(refusal) } }
    }

    pub(super) fn asking(
        acquire: limiter::Asking,
        inner: S,
        request: Req,
        layer: Arc<RateLimitLayer<Req, S::Response, R>>,
    ) -> Self {
        Self { layer, state: State::Asking { asking: Asking::new(acquire, inner, request) } }
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
        let config = &this.layer.config;
        let settings = &config.settings;
        loop {
            match this.state.as_mut().project() {
                StateProjection::LookingUp { looking } => {
                    let asked = ready!(looking.asked.as_mut().poll(context));
                    let Some((cost, mut inner, request)) = looking.then.take() else { return Poll::Pending };
                    let next = match asked {
                        Ok(Some((key, quotas))) => {
                            let acquire = settings.acquire(quotas.as_ref(), key, cost);
                            State::Asking { asking: Asking::new(acquire, inner, request) }
                        }
                        Err(error) if !settings.passes_without_key(&error) => {
                            return Poll::Ready(config.refuse::<S::Error>(error.into()));
                        }
                        Ok(None) | Err(_) => {
                            State::Calling { future: inner.call(request), key: None, granted: None }
                        }
                    };
                    this.state.set(next);
                }
                StateProjection::Asking { asking } => {
                    let Asking { acquire, outage, call } = &mut **asking;
                    let (decision, outcome) = match ready!(Pin::new(&mut *acquire).poll(context)) {
                        Ok(decision) => {
                            let by_share = decision.is_admitted() && outage.is_some();
                            let outcome = if by_share { Outcome::LocalShare } else { Outcome::of(&decision) };
                            (Ok(Some(decision)), outcome)
                        }
                        Err(error) => match (&settings.on_store_failure, outage.take()) {
                            // The local share failed, too: its burst is below the cost.
                            (_, Some(outage)) => (Err(outage), Outcome::FailedClosed),
                            (Away::FailOpen, None) if error.is_away() => (Ok(None), Outcome::FailedOpen),
                            (Away::LocalShare(local), None)
                                if error.is_away()
                                    && let Some(share) = acquire.of_share(local) =>
                            {
                                *acquire = share;
                                *outage = Some(error);
                                continue;
                            }
                            _ => {
                                let outcome = Outcome::of_error(&error);
                                (Err(error), outcome)
                            }
                        },
                    };
                    let Some((mut inner, mut request)) = call.take() else { return Poll::Pending };
                    let decision = match decision {
                        Ok(Some(refused)) if !refused.is_admitted() => {
                            config.refused(&request, acquire.key(), &refused);
                            Err(Refusal::from(refused))
                        }
                        decision => decision.map_err(Refusal::from),
                    };
                    settings.limiter.decisions().count(settings.counted(outcome, decision.is_ok()));
                    let decision = match decision {
                        Ok(decision) => decision,
                        Err(_) if settings.shadow => None,
                        Err(refusal) => {
                            let refusal = refusal.of(acquire.take_key());
                            return Poll::Ready(config.refuse::<S::Error>(refusal));
                        }
                    };
                    if let Some(decision) = &decision {
                        config.hooks.admitted(decision, &mut request);
                    }
                    let (key, by_share) = (Some(acquire.take_key()), outcome == Outcome::LocalShare);
                    let granted = decision.map(|decision| Granted { decision, by_share });
                    let future = inner.call(request);
                    this.state.set(State::Calling { future, key, granted });
                }
                StateProjection::Refused { refusal } => {
                    // Yields to other tasks now and then, because this path never waits.
                    ready!(pin!(consume_budget()).poll(context));
                    let Some(refusal) = refusal.take() else { return Poll::Pending };
                    return Poll::Ready(config.refuse::<S::Error>(refusal));
                }
                StateProjection::Calling { future, key, granted } => {
                    let mut response = match ready!(future.poll(context)) {
                        Ok(response) => response,
                        Err(error) => return Poll::Ready(Err(config.reject.inner_error(error))),
                    };
                    let admission = granted.as_ref().zip(key.as_ref()).map(|(granted, key)| Admission {
                        decision: &granted.decision,
                        key,
                        is_weighted: config.is_weighted(),
                    });
                    let Afterwards { block, charge } =
                        config.hooks.answered(admission.as_ref(), &mut response);
                    if let (true, Some(key), Some(granted)) = (charge > 0, &*key, &*granted) {
                        settings.charge(key.clone(), granted, charge);
                    }
                    if let Some(duration) = block
                        && let Some(key) = key.take()
                    {
                        settings.block(key, duration);
                    }
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

debug!(ResponseFuture<S: Service<Req>, Req, R>);
