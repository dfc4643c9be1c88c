//! Claims on the items of requests.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::{DuplicateAction, Evidence, OnUnsure, RequestClaims, Unsure};
use crate::dedupe::{Claim, Known, Looked};
use crate::lease::layer::{
    Acquire, Acquired, Acquiring, Finish, Holds, LeaseLayer, Lifecycle, Next, acquire,
};
use crate::middleware::away::Away;
use crate::telemetry::{Decisions, Outcome};
use crate::{Dedupe, Error, Extracted, Key};

/// Where items are claimed.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) dedupe: Dedupe,
    pub(super) away: Away<Dedupe>,
}

/// Whether to claim an item that is reported as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Insists {
    No,
    /// If the filter is above its capacity.
    IfFull,
    /// `confirm_duplicate` answered that it is not a duplicate.
    LookedUp,
}

/// What is known of an item.
#[derive(Debug)]
pub struct Item {
    key: Key,
    claim: Option<Claim>,
    verdict: Verdict,
}

/// Whether an item is to be handled.
#[derive(Debug)]
enum Verdict {
    /// It is claimed.
    New(Outcome),
    /// The store reports it as known. It is verified if the layer has `confirm_duplicate`.
    Reported(Known),
    Duplicate(Evidence),
}

impl Acquire for Source {
    type Asked = Insists;
    type Granted = Item;

    fn decisions(&self) -> &Decisions {
        self.dedupe.decisions()
    }

    fn is_in_memory(&self) -> bool {
        self.dedupe.is_in_memory()
    }

    async fn acquire(
        &self,
        key: Key,
        insists: Insists,
        max_wait: Option<Duration>,
    ) -> Acquired<Item> {
        let item = key.as_bytes();
        let mut is_full = false;
        let (claim, verdict) = loop {
            let claim = |dedupe: Dedupe| async move {
                dedupe
                    .look(item, max_wait, is_full || insists == Insists::LookedUp)
                    .await
            };
            let asked = claim(self.dedupe.clone()).await;
            let settled = self.away.settle(asked, |local, _| claim(local)).await;
            let (looked, outcome) =
                settled.inspect_err(|error| self.decisions().count(Outcome::of_error(error)))?;
            break match (looked, insists) {
                (None, _) => {
                    self.decisions().count(outcome);
                    return Ok(None);
                }
                // If it insisted, it had to wait, so the filter was asked after all.
                (Some(Looked::Known(known)), Insists::IfFull)
                    if is_full || known == Known::ByFullFilter =>
                {
                    is_full = true;
                    continue;
                }
                (Some(Looked::Known(known)), _) => (None, Verdict::Reported(known)),
                // It may have been handled since it was looked up.
                (Some(Looked::New(claim)), Insists::LookedUp) => {
                    (Some(claim), Verdict::Reported(Known::ByFilter))
                }
                (Some(Looked::New(claim)), _) if is_full && outcome == Outcome::Admitted => {
                    (Some(claim), Verdict::New(Outcome::FilterFull))
                }
                (Some(Looked::New(claim)), _) => (Some(claim), Verdict::New(outcome)),
            };
        };
        Ok(Some(Item {
            key,
            claim,
            verdict,
        }))
    }
}

impl<Req, Res, E> Holds for RequestClaims<Req, Res, E> {
    type Granted = Item;
    type Guard = (Claim, Key);
    type Held = (Claim, Key);
    /// Confirms or releases the claim. Then the outcome of the inner service is returned.
    type Finishing = (BoxFuture<'static, ()>, Option<Result<Res, E>>);
}

impl<Req, Res, E> Lifecycle<Req, Res, E> for RequestClaims<Req, Res, E> {
    type Response = Res;

    fn acquire<R>(layer: &LeaseLayer<Req, Self, R>, key: Extracted, _: &Req) -> Acquiring<Item> {
        let RequestClaims {
            source,
            confirm_duplicate,
            ..
        } = &layer.provide;
        let insists = if confirm_duplicate.is_some() {
            Insists::No
        } else {
            Insists::IfFull
        };
        acquire(source, key, insists, layer.max_wait)
    }

    fn admit<R>(
        layer: &LeaseLayer<Req, Self, R>,
        Item {
            key,
            claim,
            verdict,
        }: Item,
        mut request: Req,
    ) -> Next<Item, (Claim, Key), Req, Res> {
        let (
            RequestClaims {
                source,
                confirm_duplicate,
                on_duplicate,
                ..
            },
            max_wait,
        ) = (&layer.provide, layer.max_wait);
        let evidence = match (verdict, confirm_duplicate) {
            (Verdict::New(outcome), _) => {
                source.decisions().count(outcome);
                let lease = claim.map(|claim| {
                    let handle = claim.handle();
                    layer
                        .on_lease
                        .iter()
                        .for_each(|told| told.on_lease(&handle, &mut request));
                    ((claim, key), layer.cancel_when_lost.then_some(handle))
                });
                return Next::Call(lease, request);
            }
            (Verdict::Reported(_), Some(verify)) => {
                let (is_duplicate, source) = (verify(&request), source.clone());
                let verified = async move {
                    let (claim, verdict) = match (is_duplicate.await, claim) {
                        // If there is a claim, another caller handled the item between the two calls of
                        // `confirm_duplicate`.
                        (true, _) => (None, Verdict::Duplicate(Evidence::LookedUp)),
                        (false, None) => {
                            return source.acquire(key, Insists::LookedUp, max_wait).await;
                        }
                        (false, claim) => (claim, Verdict::New(Outcome::Admitted)),
                    };
                    Ok(Some(Item {
                        key,
                        claim,
                        verdict,
                    }))
                };
                return Next::Acquire(Box::pin(verified), request);
            }
            (Verdict::Reported(Known::Exactly), None) => Evidence::LookedUp,
            (Verdict::Reported(_), None) => Evidence::Filter,
            (Verdict::Duplicate(evidence), _) => evidence,
        };
        let action = on_duplicate(request, evidence);
        source.decisions().count(match action {
            DuplicateAction::Pass(_) => Outcome::Admitted,
            DuplicateAction::Answer(_) | DuplicateAction::Refuse => Outcome::Refused,
        });
        match action {
            DuplicateAction::Pass(request) => Next::Call(None, request),
            DuplicateAction::Answer(response) => Next::Answer(response),
            DuplicateAction::Refuse => Next::Refuse(Error::duplicate()),
        }
    }

    fn close(guard: (Claim, Key)) -> Option<(Claim, Key)> {
        Some(guard)
    }

    fn finish<R>(
        layer: &LeaseLayer<Req, Self, R>,
        held: Option<(Claim, Key)>,
        outcome: Result<Res, E>,
    ) -> Finish<Self::Finishing, Res, E> {
        let Some((claim, key)) = held else {
            return Finish::Now(outcome);
        };
        let RequestClaims {
            source,
            success,
            on_unsure,
            ..
        } = &layer.provide;
        let settling = settle(claim, key, success(&outcome), on_unsure.clone());
        if source.is_in_memory() {
            let settled = settling.now_or_never();
            debug_assert!(settled.is_some(), "in memory it is done at once");
            return Finish::Now(outcome);
        }
        Finish::Later((Box::pin(settling), Some(outcome)))
    }

    fn poll_finish(
        (settling, outcome): &mut Self::Finishing,
        context: &mut Context<'_>,
    ) -> Poll<Result<Res, E>> {
        ready!(settling.poll_unpin(context));
        outcome.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Confirms a claim after a success, else releases it.
async fn settle(claim: Claim, key: Key, success: bool, on_unsure: OnUnsure) {
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
}

debug!(RequestClaims<Req, Res, E>, source.dedupe);
