//! The response future.

use std::fmt;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;
use tower::Service;

use super::{Away, Common, Config, ConfirmDuplicate, IsSuccess, OnDuplicate, Unsure, Verdict};
use crate::dedupe::{Claim, Claimed};
use crate::leased::OnLease;
use crate::{Error, Key, Reject};

pin_project! {
    /// The future of [`Deduped`](super::Deduped).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, K, U, D, Q, N, R>
    where
        S: Service<Req>,
    {
        config: Arc<Config<K, U, D, Q, N, R>>,
        key: Key,
        #[pin]
        state: State<S, Req>,
    }
}

/// What is kept until the inner service is called; `None` once it is.
type Call<S, Req> = Option<(S, Req)>;

/// What came of a claim; `None`: the request passes without one.
type Claiming = BoxFuture<'static, Result<Option<Claimed>, Error>>;

pin_project! {
    #[project = StateProjection]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        Claiming {
            claiming: Claiming,
            call: Call<S, Req>,
        },
        // Whether a duplicate is one is looked up.
        Confirming {
            confirming: BoxFuture<'static, bool>,
            call: Call<S, Req>,
        },
        Calling {
            #[pin]
            future: S::Future,
            claim: Option<Claim>,
            // Where the inner future is to be dropped then.
            lost: Option<BoxFuture<'static, ()>>,
        },
        // The claim is confirmed or given back.
        Settling {
            settling: BoxFuture<'static, Option<Unsure>>,
            outcome: Option<Result<S::Response, S::Error>>,
        },
        Done,
    }
}

impl<S, Req, K, U, D, Q, N, R> ResponseFuture<S, Req, K, U, D, Q, N, R>
where
    S: Service<Req>,
{
    pub(super) fn passing(future: S::Future, config: Arc<Config<K, U, D, Q, N, R>>) -> Self {
        let state = State::Calling { future, claim: None, lost: None };
        Self { config, key: Key::from(""), state }
    }

    pub(super) fn claiming(key: Key, inner: S, request: Req, config: Arc<Config<K, U, D, Q, N, R>>) -> Self {
        let claiming = claim(&config.common, &key, false);
        Self { config, key, state: State::Claiming { claiming, call: Some((inner, request)) } }
    }
}

/// Claims an item, as it is set.
fn claim(common: &Common, key: &Key, insists: bool) -> Claiming {
    let Common { dedupe, longest_wait, away, .. } = common.clone();
    let key = key.clone();
    Box::pin(async move {
        match (dedupe.ask(key.as_bytes(), longest_wait, insists).await, away) {
            (Err(error), Away::Admit) if error.is_away() => Ok(None),
            (Err(error), Away::Degrade(Some(local))) if error.is_away() => {
                local.ask(key.as_bytes(), longest_wait, insists).await.map(Some)
            }
            (claimed, _) => claimed.map(Some),
        }
    })
}

/// Confirms a claim, or gives it back.
fn settle(claim: Claim, key: Key, success: bool) -> BoxFuture<'static, Option<Unsure>> {
    Box::pin(async move {
        if !success {
            // What could not be given back now is so in the background, or runs out.
            let _ = claim.release().await;
            return None;
        }
        match claim.confirm().await {
            Ok(true) => None,
            Ok(false) => Some(Unsure { key, error: None }),
            Err(error) => Some(Unsure { key, error: Some(error) }),
        }
    })
}

impl<S, Req, K, U, D, Q, N, R> Future for ResponseFuture<S, Req, K, U, D, Q, N, R>
where
    S: Service<Req>,
    U: IsSuccess<S::Response, S::Error>,
    D: OnDuplicate<Req, S::Response>,
    Q: ConfirmDuplicate<Req>,
    N: OnLease<Req>,
    R: Reject<S::Response, S::Error>,
{
    type Output = Result<S::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let config = &**this.config;
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Claiming { claiming, call } => {
                    let claimed = match ready!(claiming.as_mut().poll(context)) {
                        Ok(claimed) => claimed,
                        Err(error) => return Poll::Ready(config.reject.reject(error.into())),
                    };
                    let Some((mut inner, mut request)) = call.take() else { return Poll::Pending };
                    let claim = match claimed {
                        None => None,
                        Some(Claimed::New(claim)) => Some(claim),
                        Some(Claimed::Duplicate) => {
                            let confirming = config.confirm_duplicate.confirm(&request);
                            let confirming = confirming.unwrap_or_else(|| Box::pin(future::ready(true)));
                            this.state.set(State::Confirming { confirming, call: Some((inner, request)) });
                            continue;
                        }
                    };
                    let mut lost: Option<BoxFuture<'static, ()>> = None;
                    if let Some(claim) = &claim {
                        config.on_lease.on_lease(&claim.handle(), &mut request);
                        if config.common.cancel_when_lost {
                            lost = Some(Box::pin(claim.lost()));
                        }
                    }
                    State::Calling { future: inner.call(request), claim, lost }
                }
                StateProjection::Confirming { confirming, call } => {
                    let is_duplicate = ready!(confirming.as_mut().poll(context));
                    let Some((mut inner, request)) = call.take() else { return Poll::Pending };
                    if !is_duplicate {
                        let claiming = claim(&config.common, this.key, true);
                        this.state.set(State::Claiming { claiming, call: Some((inner, request)) });
                        continue;
                    }
                    let request = match config.on_duplicate.on_duplicate(request) {
                        Verdict::Pass(request) => request,
                        Verdict::Answer(response) => return Poll::Ready(Ok(response)),
                        Verdict::Refuse => {
                            return Poll::Ready(config.reject.reject(Error::duplicate().into()));
                        }
                    };
                    State::Calling { future: inner.call(request), claim: None, lost: None }
                }
                StateProjection::Calling { future, claim, lost } => {
                    if let Some(lost) = lost
                        && lost.as_mut().poll(context).is_ready()
                    {
                        // What was at work is dropped before anybody hears of it.
                        this.state.set(State::Done);
                        return Poll::Ready(config.reject.reject(Error::lost().into()));
                    }
                    let outcome = ready!(future.poll(context));
                    let Some(claim) = claim.take() else {
                        this.state.set(State::Done);
                        return Poll::Ready(outcome.map_err(|error| config.reject.inner_error(error)));
                    };
                    let settling = settle(claim, this.key.clone(), config.success.is_success(&outcome));
                    State::Settling { settling, outcome: Some(outcome) }
                }
                StateProjection::Settling { settling, outcome } => {
                    let unsure = ready!(settling.as_mut().poll(context));
                    let Some(outcome) = outcome.take() else { return Poll::Pending };
                    if let (Some(unsure), Some(told)) = (unsure, &config.common.on_unsure) {
                        told(&unsure);
                    }
                    this.state.set(State::Done);
                    return Poll::Ready(outcome.map_err(|error| config.reject.inner_error(error)));
                }
                StateProjection::Done => return Poll::Pending,
            };
            this.state.set(next);
        }
    }
}

impl<S, Req, K, U, D, Q, N, R> fmt::Debug for ResponseFuture<S, Req, K, U, D, Q, N, R>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
