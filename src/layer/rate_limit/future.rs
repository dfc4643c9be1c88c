//! The response future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower::Service;

use super::hooks::Hooks;
use super::layer::{Away, Config};
use crate::telemetry::Outcome;
use crate::token_bucket::{Acquire, Decision};
use crate::{Error, Key, Refusal, Reject};

pin_project! {
    /// The future of [`RateLimit`](super::RateLimit).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, K, C, Q, H, R>
    where
        S: Service<Req>,
    {
        config: Arc<Config<K, C, Q, H, R>>,
        #[pin]
        state: State<S, Req>,
    }
}

/// What is kept while the store is asked. In a box, so that requests that are decided at once carry no room for it.
struct Asking<S, Req> {
    acquire: Acquire,
    /// Set where the store is away and `acquire` asks this process's own bucket.
    outage: Option<Error>,
    /// The ready service and the request; `None` once called.
    call: Option<(S, Req)>,
}

pin_project! {
    #[project = StateProjection]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        Asking {
            asking: Box<Asking<S, Req>>,
        },
        Refused {
            // `None` once told.
            refusal: Option<Refusal>,
        },
        Calling {
            #[pin]
            future: S::Future,
            // `None` for a request that passes.
            key: Option<Key>,
            // `None` for what was let through without one.
            decision: Option<Decision>,
        },
    }
}

impl<S, Req, K, C, Q, H, R> ResponseFuture<S, Req, K, C, Q, H, R>
where
    S: Service<Req>,
{
    pub(super) fn calling(
        future: S::Future,
        key: Option<Key>,
        decision: Option<Decision>,
        config: Arc<Config<K, C, Q, H, R>>,
    ) -> Self {
        Self { config, state: State::Calling { future, key, decision } }
    }

    pub(super) fn refused(refusal: Refusal, config: Arc<Config<K, C, Q, H, R>>) -> Self {
        Self { config, state: State::Refused { refusal: Some(refusal) } }
    }

    pub(super) fn asking(
        acquire: Acquire,
        inner: S,
        request: Req,
        config: Arc<Config<K, C, Q, H, R>>,
    ) -> Self {
        let asking = Box::new(Asking { acquire, outage: None, call: Some((inner, request)) });
        Self { config, state: State::Asking { asking } }
    }
}

impl<S, Req, K, C, Q, H, R> Future for ResponseFuture<S, Req, K, C, Q, H, R>
where
    S: Service<Req>,
    H: Hooks<Req, S::Response>,
    R: Reject<S::Response, S::Error>,
{
    type Output = Result<S::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let config = &**this.config;
        loop {
            match this.state.as_mut().project() {
                StateProjection::Asking { asking } => {
                    let Asking { acquire, outage, call } = &mut **asking;
                    let (decision, outcome) = match ready!(Pin::new(&mut *acquire).poll(context)) {
                        Ok(decision) => {
                            let by_share = decision.is_admitted() && outage.is_some();
                            let outcome = if by_share { Outcome::LocalShare } else { Outcome::of(&decision) };
                            (Ok(Some(decision)), outcome)
                        }
                        Err(error) => match (&config.on_store_failure, outage.take()) {
                            // Not even this process's own bucket admits it: it is too small.
                            (_, Some(outage)) => (Err(outage), Outcome::FailedClosed),
                            (Away::FailOpen, None) if error.is_away() => (Ok(None), Outcome::FailedOpen),
                            (Away::LocalShare { replicas, local }, None) if error.is_away() => {
                                *acquire = acquire.again(|bucket| local.standing_in_for(bucket, *replicas));
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
                            config.hooks.refused(&request, acquire.key(), &refused);
                            Err(Refusal::from(refused))
                        }
                        decision => decision.map_err(Refusal::from),
                    };
                    config.bucket.decisions().count(config.counted(outcome, decision.is_ok()));
                    let decision = match decision {
                        Ok(decision) => decision,
                        Err(_) if config.shadow => None,
                        Err(refusal) => return Poll::Ready(config.reject.reject(refusal)),
                    };
                    if let Some(decision) = &decision {
                        config.hooks.admitted(decision, &mut request);
                    }
                    let key = Some(acquire.key().clone());
                    let future = inner.call(request);
                    this.state.set(State::Calling { future, key, decision });
                }
                StateProjection::Refused { refusal } => {
                    let Some(refusal) = refusal.take() else { return Poll::Pending };
                    return Poll::Ready(config.reject.reject(refusal));
                }
                StateProjection::Calling { future, key, decision } => {
                    let mut response = match ready!(future.poll(context)) {
                        Ok(response) => response,
                        Err(error) => return Poll::Ready(Err(config.reject.inner_error(error))),
                    };
                    if let Some(duration) = config.hooks.answered(decision.as_ref(), &mut response)
                        && let Some(key) = key.take()
                    {
                        config.block(key, duration);
                    }
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

impl<S, Req, K, C, Q, H, R> fmt::Debug for ResponseFuture<S, Req, K, C, Q, H, R>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
