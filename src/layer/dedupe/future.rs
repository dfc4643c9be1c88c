//! The response future.

use std::fmt;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pin_project_lite::pin_project;
use tower::Service;

use super::{Common, Config, DuplicateAction, Evidence, OnUnsure, Unsure};
use crate::layer::at_once;
use crate::primitive::dedupe::{Claim, Known, Looked};
use crate::primitive::lease::Watch;
use crate::telemetry::Outcome;
use crate::{Dedupe, Error, Extracted, Key, Reject};

pin_project! {
    /// The future of [`DedupeService`](super::DedupeService).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, R>
    where
        S: Service<Req>,
    {
        config: Arc<Config<Req, S::Response, S::Error, R>>,
        key: Key,
        #[pin]
        state: State<S, Req>,
    }
}

/// The inner service and the request, until the service is called. `None` after that.
type Call<S, Req> = Option<(S, Req)>;

/// A claim, or `None` if the request passes without a claim.
type Claimed = Result<Option<Looked>, Error>;

/// A claim in progress. `None` before its first poll.
type Claiming = Option<BoxFuture<'static, Claimed>>;

/// Whether and why to claim an item that is reported as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Insists {
    No,
    /// `confirm_duplicate` answered that it is not a duplicate.
    LookedUp,
    /// The filter is above its capacity.
    Full,
}

pin_project! {
    #[project = StateProjection]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        Extracting {
            extracting: Extracted,
            call: Call<S, Req>,
        },
        Claiming {
            claiming: Claiming,
            insists: Insists,
            call: Call<S, Req>,
        },
        // Calls `confirm_duplicate`: first without a claim, and if the item is not a duplicate, again with a claim.
        Confirming {
            confirming: BoxFuture<'static, bool>,
            evidence: Evidence,
            claim: Option<Claim>,
            call: Call<S, Req>,
        },
        Calling {
            #[pin]
            future: S::Future,
            claim: Option<Claim>,
            // Drops the inner future when the claim is lost, if the settings say so.
            watch: Watch,
        },
        // Confirms or releases the claim.
        Settling {
            settling: BoxFuture<'static, ()>,
            outcome: Option<Result<S::Response, S::Error>>,
        },
        Done,
    }
}

impl<S, Req, R> ResponseFuture<S, Req, R>
where
    S: Service<Req>,
{
    pub(super) fn passing(future: S::Future, config: Arc<Config<Req, S::Response, S::Error, R>>) -> Self {
        let state = State::Calling { future, claim: None, watch: Watch::none() };
        Self { config, key: Key::from(""), state }
    }

    pub(super) fn extracting(
        extracting: Extracted,
        inner: S,
        request: Req,
        config: Arc<Config<Req, S::Response, S::Error, R>>,
    ) -> Self {
        let state = State::Extracting { extracting, call: Some((inner, request)) };
        Self { config, key: Key::from(""), state }
    }

    pub(super) fn claiming(
        key: Key,
        inner: S,
        request: Req,
        config: Arc<Config<Req, S::Response, S::Error, R>>,
    ) -> Self {
        let state = claiming(Insists::No, (inner, request));
        Self { config, key, state }
    }
}

async fn claim(common: &Common, key: &Key, insists: Insists) -> Claimed {
    let Common { dedupe, max_wait, away, .. } = common;
    let claim = |dedupe: Dedupe, _: Option<Error>| async move {
        match insists {
            Insists::No => dedupe.look(key.as_bytes(), *max_wait).await,
            _ => dedupe.insist(key.as_bytes(), *max_wait).await,
        }
    };
    let asked = claim(dedupe.clone(), None).await;
    let settled = away.settle(asked, |local, outage| claim(local, Some(outage))).await;
    match &settled {
        Err(error) => dedupe.decisions().count(Outcome::of_error(error)),
        // Counted later, when it is known whether the item is a duplicate.
        Ok((Some(Looked::Known(_)), _)) => {}
        Ok((Some(Looked::New(_)), _)) if insists == Insists::LookedUp => {}
        Ok((_, Outcome::Admitted)) if insists == Insists::Full => {
            dedupe.decisions().count(Outcome::FilterFull);
        }
        Ok((_, outcome)) => dedupe.decisions().count(*outcome),
    }
    settled.map(|(claimed, _)| claimed)
}

/// Claims an item by the settings of the layer.
fn poll_claim(
    claiming: &mut Claiming,
    common: &Common,
    key: &Key,
    insists: Insists,
    context: &mut Context<'_>,
) -> Poll<Claimed> {
    if claiming.is_none()
        && common.dedupe.is_in_memory()
        && common.max_wait.is_none()
        && let Some(claimed) = at_once(claim(common, key, insists))
    {
        return Poll::Ready(claimed);
    }
    let claiming = claiming.get_or_insert_with(|| {
        let (common, key) = (common.clone(), key.clone());
        Box::pin(async move { claim(&common, &key, insists).await })
    });
    claiming.as_mut().poll(context)
}

fn claiming<S, Req>(insists: Insists, call: (S, Req)) -> State<S, Req>
where
    S: Service<Req>,
{
    State::Claiming { claiming: None, insists, call: Some(call) }
}

/// Confirms a claim after a success, else releases it.
fn settle(claim: Claim, key: Key, success: bool, on_unsure: OnUnsure) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        if !success {
            // If the release fails, it is retried in the background, or the claim expires.
            let _ = claim.release().await;
            return;
        }
        let hear = move |outcome: &Result<bool, Error>| {
            let error = match outcome {
                Ok(true) => return,
                Ok(false) => None,
                Err(error) => Some(error.clone()),
            };
            if let Some(told) = on_unsure {
                told(&Unsure { key, error });
            }
        };
        // `hear` has reported the outcome.
        let _ = claim.confirm_and(hear).await;
    })
}

/// Calls the inner service, with the claim if there is one.
fn call<S, Req, R>(
    config: &Config<Req, S::Response, S::Error, R>,
    claim: Option<Claim>,
    (mut inner, mut request): (S, Req),
) -> State<S, Req>
where
    S: Service<Req>,
{
    let mut watch = Watch::none();
    if let Some(claim) = &claim {
        let handle = claim.handle();
        config.on_lease.iter().for_each(|told| told.on_lease(&handle, &mut request));
        watch = Watch::new(handle, config.common.cancel_when_lost);
    }
    State::Calling { future: inner.call(request), claim, watch }
}

impl<S, Req, R> Future for ResponseFuture<S, Req, R>
where
    S: Service<Req>,
    R: Reject<S::Response, S::Error>,
{
    type Output = Result<S::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let config = &**this.config;
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Extracting { extracting, call: kept } => {
                    let extracted = ready!(Pin::new(extracting).poll(context));
                    let extracted = config.common.dedupe.decisions().extracted(extracted);
                    let Some((mut inner, request)) = kept.take() else { return Poll::Pending };
                    match extracted {
                        Ok(Some(found)) => {
                            *this.key = found;
                            claiming(Insists::No, (inner, request))
                        }
                        Ok(None) => {
                            State::Calling { future: inner.call(request), claim: None, watch: Watch::none() }
                        }
                        Err(error) => {
                            this.state.set(State::Done);
                            return Poll::Ready(config.reject.reject(error.into()));
                        }
                    }
                }
                StateProjection::Claiming { claiming: asking, insists, call: kept } => {
                    let claimed =
                        match ready!(poll_claim(asking, &config.common, this.key, *insists, context)) {
                            Ok(claimed) => claimed,
                            Err(error) => {
                                // Drops the ready inner service, and keeps a later poll from claiming again.
                                this.state.set(State::Done);
                                return Poll::Ready(config.reject.reject(error.into()));
                            }
                        };
                    let Some((inner, request)) = kept.take() else { return Poll::Pending };
                    let (claim, known) = match claimed {
                        // The claim had to wait, so the filter was asked after all.
                        Some(Looked::Known(_)) if *insists == Insists::Full => (None, Known::ByFullFilter),
                        Some(Looked::Known(known)) => (None, known),
                        Some(Looked::New(claim)) if *insists == Insists::LookedUp => {
                            (Some(claim), Known::ByFilter)
                        }
                        Some(Looked::New(claim)) => {
                            this.state.set(call(config, Some(claim), (inner, request)));
                            continue;
                        }
                        None => {
                            this.state.set(call(config, None, (inner, request)));
                            continue;
                        }
                    };
                    let confirming =
                        config.confirm_duplicate.as_ref().map(|look_up| look_up.confirm(&request));
                    let (confirming, evidence) = match (confirming, known) {
                        (Some(confirming), _) => (confirming, Evidence::LookedUp),
                        (None, Known::ByFullFilter) => {
                            let call = (inner, request);
                            this.state.set(claiming(Insists::Full, call));
                            continue;
                        }
                        (None, Known::ByFilter) => (Box::pin(future::ready(true)) as _, Evidence::Filter),
                        (None, Known::Exactly) => (Box::pin(future::ready(true)) as _, Evidence::LookedUp),
                    };
                    State::Confirming { confirming, evidence, claim, call: Some((inner, request)) }
                }
                StateProjection::Confirming { confirming, evidence, claim: held, call: kept } => {
                    let is_duplicate = ready!(confirming.as_mut().poll(context));
                    let Some((mut inner, request)) = kept.take() else { return Poll::Pending };
                    let decisions = config.common.dedupe.decisions();
                    if !is_duplicate {
                        let next = match held.take() {
                            Some(claim) => {
                                decisions.count(Outcome::Admitted);
                                call(config, Some(claim), (inner, request))
                            }
                            None => claiming(Insists::LookedUp, (inner, request)),
                        };
                        this.state.set(next);
                        continue;
                    }
                    // If a claim is held, another caller handled the item between the two calls of `confirm_duplicate`.
                    drop(held.take());
                    let verdict = config.on_duplicate.on_duplicate(request, *evidence);
                    decisions.count(match verdict {
                        DuplicateAction::Pass(_) => Outcome::Admitted,
                        DuplicateAction::Answer(_) | DuplicateAction::Refuse => Outcome::Refused,
                    });
                    let request = match verdict {
                        DuplicateAction::Pass(request) => request,
                        DuplicateAction::Answer(response) => return Poll::Ready(Ok(response)),
                        DuplicateAction::Refuse => {
                            return Poll::Ready(config.reject.reject(Error::duplicate().into()));
                        }
                    };
                    State::Calling { future: inner.call(request), claim: None, watch: Watch::none() }
                }
                StateProjection::Calling { future, claim, watch } => {
                    let outcome = match ready!(watch.poll(future, context)) {
                        Ok(outcome) => outcome,
                        Err(lost) => {
                            // Drops the inner future before the refusal is returned.
                            this.state.set(State::Done);
                            return Poll::Ready(config.reject.reject(lost.into()));
                        }
                    };
                    let Some(claim) = claim.take() else {
                        this.state.set(State::Done);
                        return Poll::Ready(outcome.map_err(|error| config.reject.inner_error(error)));
                    };
                    let (key, told) = (this.key.clone(), config.common.on_unsure.clone());
                    let settling = settle(claim, key, config.success.is_success(&outcome), told);
                    State::Settling { settling, outcome: Some(outcome) }
                }
                StateProjection::Settling { settling, outcome } => {
                    ready!(settling.as_mut().poll(context));
                    let Some(outcome) = outcome.take() else { return Poll::Pending };
                    this.state.set(State::Done);
                    return Poll::Ready(outcome.map_err(|error| config.reject.inner_error(error)));
                }
                StateProjection::Done => return Poll::Pending,
            };
            this.state.set(next);
        }
    }
}

impl<S, Req, R> fmt::Debug for ResponseFuture<S, Req, R>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
