//! How a rate limit layer handles a request: it finds its key and quotas, requests a decision, counts it, and calls the
//! hooks before and after the inner service.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use tower::Service;

use crate::bucket::chosen::ChosenQuotas;
use crate::bucket::decision::Decision;
use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::key::Key;
use crate::layers::key::Extracted;
use crate::layers::rate_limit::hooks::Block;
use crate::layers::rate_limit::quotas::Rows;
use crate::layers::rate_limit::{RateLimitLayer, Settings};
use crate::layers::refusal::{Refusal, Reject, refused};
use crate::layers::{Answer, Finish, NextState, Policy, Stages, State};
use crate::store::failure::StoreFailurePolicy;
use crate::telemetry::Outcome;
use crate::token_bucket::limiter::{Acquire, Begun, Limiter};

/// How a request passes.
#[expect(
    missing_debug_implementations,
    reason = "it cannot be named outside of the crate"
)]
pub enum Passing<L> {
    /// Without a limit, or no hook reads the decision.
    Unlimited,
    /// Without a decision.
    Undecided { layer: Arc<L>, key: Key },
    /// Boxed, because most layers do not need it.
    Admitted(Box<Admitted<L>>),
}

/// An admitted request whose response is passed to hooks.
pub struct Admitted<L> {
    layer: Arc<L>,
    /// With the key.
    decision: Decision,
    /// Whether the local share of this process decided.
    by_share: bool,
}

debug!(Admitted<L>, decision);

/// What a request waits for.
#[expect(
    missing_debug_implementations,
    reason = "it cannot be named outside of the crate"
)]
pub enum Waiting {
    /// Its key and its quotas.
    LookUp {
        found: BoxFuture<'static, Found>,
        cost: u32,
    },
    /// Boxed, so that requests with an immediate decision need no space for it.
    Decision(Box<Pending>),
}

/// The key of a request and its quotas, if it has other ones than the limit. `None`: the request passes without a
/// limit.
type Found = Result<Option<(Key, Option<Quotas>)>, Error>;

/// [`Found`], or the future that looks it up.
enum LookUp {
    Ready(Found),
    Pending(BoxFuture<'static, Found>),
}

/// A decision in progress.
pub struct Pending {
    acquire: Acquire,
    /// The outage of the store, if `acquire` uses this process's local share.
    outage: Option<Error>,
}

debug!(Pending, outage);

impl<Req, Res, R> Stages for RateLimitLayer<Req, Res, R> {
    type Waiting = Waiting;
    type Held = Passing<Self>;
}

impl<S, Req, Res, R> Policy<S, Req> for RateLimitLayer<Req, Res, R>
where
    S: Service<Req, Response = Res> + Clone,
    R: Reject<Res, S::Error>,
{
    type Response = Res;
    type Error = R::Error;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn begin(self: &Arc<Self>, inner: &mut S, mut request: Req) -> NextState<Self, S, Req> {
        let cost = self.cost.as_ref().map_or(1, |cost| cost.cost(&request));
        if cost == 0 {
            return State::calling(inner, request, Passing::Unlimited);
        }
        let (key, quotas) = match self.look_up(&request, cost) {
            LookUp::Ready(Ok(Some(found))) => found,
            LookUp::Ready(Ok(None)) => return State::calling(inner, request, Passing::Unlimited),
            LookUp::Ready(Err(error)) => return self.pass(self.undecided(error), inner, request),
            LookUp::Pending(found) => {
                return State::waiting(self, Waiting::LookUp { found, cost }, inner, request);
            }
        };
        let limiter = &self.settings.limiter;
        match limiter.begin(quotas.as_ref(), key, cost, self.hooks.read_decisions()) {
            Begun::Admitted => {
                limiter.decisions().count(Outcome::Admitted);
                State::calling(inner, request, Passing::Unlimited)
            }
            Begun::Decided(decided, key) => {
                let outcome = decided.as_ref().map_or_else(Outcome::of_error, Outcome::of);
                let settled = self.settle(decided.map(Some), outcome, key, &mut request);
                self.pass(settled, inner, request)
            }
            Begun::Pending(acquire) => {
                State::waiting(self, Waiting::decision(acquire), inner, request)
            }
        }
    }

    fn poll_waiting(
        self: &Arc<Self>,
        waiting: &mut Waiting,
        call: &mut Option<(S, Req)>,
        context: &mut Context<'_>,
    ) -> Poll<NextState<Self, S, Req>> {
        let settings = &self.settings;
        if let Waiting::LookUp { found, cost } = waiting {
            let passing = match ready!(found.as_mut().poll(context)) {
                Ok(Some((key, quotas))) => {
                    let acquire = settings.limiter.acquire(quotas.as_ref(), key, *cost);
                    *waiting = Waiting::decision(acquire);
                    return self.poll_waiting(waiting, call, context);
                }
                Ok(None) => Ok(Passing::Unlimited),
                Err(error) => self.undecided(error),
            };
            return call.take().map_or(Poll::Pending, |(mut inner, request)| {
                Poll::Ready(self.pass(passing, &mut inner, request))
            });
        }
        let Waiting::Decision(pending) = waiting else {
            return Poll::Pending;
        };
        let (decided, outcome) = ready!(pending.poll(settings, context));
        let key = pending.acquire.take_key();
        call.take()
            .map_or(Poll::Pending, |(mut inner, mut request)| {
                let settled = self.settle(decided, outcome, key, &mut request);
                Poll::Ready(self.pass(settled, &mut inner, request))
            })
    }

    fn finish(
        passing: Passing<Self>,
        outcome: Result<Res, S::Error>,
    ) -> Finish<Answer<Self, S, Req>> {
        Finish::Now(outcome.map_err(R::inner_error).map(|mut response| {
            match passing {
                Passing::Unlimited => {}
                Passing::Undecided { layer, key } => layer.block(&key, None, &mut response),
                Passing::Admitted(admitted) => admitted.answered(&mut response),
            }
            response
        }))
    }
}

impl Waiting {
    fn decision(acquire: Acquire) -> Self {
        Self::Decision(Box::new(Pending {
            acquire,
            outage: None,
        }))
    }
}

impl Pending {
    /// Polls the decision of the store, or of the local share after an outage. `None`: the request passes without a
    /// decision.
    fn poll(
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

/// Looks up the key of a request, and then its quotas.
async fn look_up(limiter: Limiter, key: Extracted, cost: u32, quotas: ChosenQuotas) -> Found {
    let Some(key) = key.await? else {
        return Ok(None);
    };
    let quotas = limiter.learned_or(&key, cost, quotas).get().await?;
    Ok(Some((key, quotas)))
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Finds the key of a request, and its quotas.
    fn look_up(&self, request: &Req, cost: u32) -> LookUp {
        let limiter = &self.settings.limiter;
        let rows = match Rows::of(&self.quotas, request) {
            Ok(rows) => rows,
            Err(error) => return LookUp::Ready(Err(error)),
        };
        let key = match limiter.key_of(&self.keys, request, |first| rows.key(first)) {
            Extracted::Ready(Ok(Some(key))) => key,
            Extracted::Ready(Ok(None)) => return LookUp::Ready(Ok(None)),
            Extracted::Ready(Err(error)) => return LookUp::Ready(Err(error)),
            pending => {
                let quotas = rows.quotas(&self.quotas, request);
                return LookUp::Pending(Box::pin(look_up(limiter.clone(), pending, cost, quotas)));
            }
        };
        let chosen = rows.quotas(&self.quotas, request);
        match limiter.learned_or(&key, cost, chosen) {
            ChosenQuotas::Ready(quotas) => LookUp::Ready(quotas.map(|quotas| Some((key, quotas)))),
            pending => LookUp::Pending(Box::pin(
                async move { Ok(Some((key, pending.get().await?))) },
            )),
        }
    }

    /// Calls the inner service, or refuses the request.
    fn pass<S>(
        &self,
        passing: Result<Passing<Self>, Refusal>,
        inner: &mut S,
        request: Req,
    ) -> State<S, Req, Self, Result<Res, R::Error>>
    where
        S: Service<Req, Response = Res>,
        R: Reject<Res, S::Error>,
    {
        match passing {
            Ok(passing) => State::calling(inner, request, passing),
            Err(refusal) => State::answered(self.refuse(refusal)),
        }
    }

    /// Turns a refusal into a response or an error, with the fields of the layer.
    fn refuse<E>(&self, refusal: Refusal) -> Result<Res, R::Error>
    where
        R: Reject<Res, E>,
    {
        let Some(fields) = &self.hooks.fields else {
            return refused(&self.reject, refusal);
        };
        let kept = refusal.clone();
        let mut response = refused(&self.reject, refusal)?;
        if let Some(decision) = kept.decision() {
            fields(decision, self.is_weighted(), &mut response);
        }
        Ok(response)
    }

    /// Whether requests cost different numbers of tokens.
    fn is_weighted(&self) -> bool {
        self.cost.is_some() || !self.hooks.cost_of_response.is_empty()
    }

    /// Counts the outcome of a request.
    fn count(&self, outcome: Outcome, may_pass: bool) {
        let counted = if self.settings.shadow && !may_pass {
            Outcome::Shadowed
        } else {
            outcome
        };
        self.settings.limiter.decisions().count(counted);
    }

    /// Counts a request whose key or quotas are not available.
    fn undecided(&self, error: Error) -> Result<Passing<Self>, Refusal> {
        self.settings.limiter.decisions().tell_unextracted(&error);
        self.count(Outcome::of_error(&error), false);
        if self.settings.shadow {
            Ok(Passing::Unlimited)
        } else {
            Err(error.into())
        }
    }

    /// Counts the outcome of a request and calls the hooks. Returns the refusal, unless the request passes.
    fn settle(
        self: &Arc<Self>,
        decided: Result<Option<Decision>, Error>,
        outcome: Outcome,
        key: Key,
        request: &mut Req,
    ) -> Result<Passing<Self>, Refusal> {
        let undecided = |key| Passing::Undecided {
            layer: Arc::clone(self),
            key,
        };
        let is_shadow = self.settings.shadow;
        let mut decision = match decided {
            Ok(Some(decision)) => decision,
            Ok(None) => {
                self.count(outcome, true);
                return Ok(undecided(key));
            }
            Err(error) => {
                self.count(outcome, false);
                return if is_shadow {
                    Ok(undecided(key))
                } else {
                    Err(error.into())
                };
            }
        };
        if decision.is_admitted() {
            self.count(outcome, true);
            if !self.hooks.read_decisions() {
                return Ok(Passing::Unlimited);
            }
            decision.key = Some(key);
            for hook in &self.hooks.on_admit {
                hook(&decision, request);
            }
            return Ok(Passing::Admitted(Box::new(Admitted {
                layer: Arc::clone(self),
                decision,
                by_share: outcome == Outcome::LocalShare,
            })));
        }
        decision.key = Some(key.clone());
        self.refused(request, &key, &decision);
        self.count(outcome, false);
        if is_shadow {
            Ok(undecided(key))
        } else {
            Err(decision.into())
        }
    }

    /// Calls the hooks for a refused request, and counts the refusal for a ban.
    fn refused(&self, request: &Req, key: &Key, decision: &Decision) {
        let by = self.settings.limiter.refused(key, decision);
        let (limit, key) = by.as_ref().map_or((0, key), |(limit, key)| (*limit, key));
        self.hooks
            .on_refused
            .iter()
            .for_each(|hook| hook(request, key, decision));
        if let Some(bans) = &self.settings.ban
            && !self.settings.shadow
            && limit == 0
            && !decision.is_closed()
        {
            bans.refused(self.settings.limiter.first(), key, decision);
        }
    }

    /// Learns the limits of an upstream from a response, and blocks the key as the response requests. `decision`: the
    /// decision of the store that admitted the request.
    fn block(&self, key: &Key, decision: Option<&Decision>, response: &mut Res) {
        let hooks = &self.hooks;
        let settings = &self.settings;
        let mut blocks = Block::default();
        if let Some(learn) = &hooks.learn {
            let learned = learn.learn(response);
            if let Some(decision) = decision {
                settings.limiter.learn(decision, &learned);
            }
            blocks = learned.block();
        }
        for hook in &hooks.block_on_response {
            let block = hook.block_on_response(response);
            blocks.duration = blocks.duration.max(block.duration);
            blocks.ignored += block.ignored;
        }
        if blocks.ignored > 0 {
            settings.limiter.first().upstream_ignored(blocks.ignored);
        }
        if let Some(duration) = blocks.duration.filter(|block| !block.is_zero()) {
            if let StoreFailurePolicy::LocalShare(local) = &settings.on_store_failure {
                local.block(key, duration);
            }
            settings.limiter.block(key, duration);
        }
    }
}

impl<Req, Res, R> Admitted<RateLimitLayer<Req, Res, R>> {
    /// Calls the hooks for a response, and charges or blocks its key as they return.
    fn answered(&self, response: &mut Res) {
        let decision = &self.decision;
        let layer = &*self.layer;
        let hooks = &layer.hooks;
        if let Some(fields) = &hooks.fields {
            fields(decision, layer.is_weighted(), response);
        }
        for hook in &hooks.on_response {
            hook(decision, response);
        }
        if !hooks.cost_of_response.is_empty() {
            let tokens = hooks.cost_of_response.iter();
            let tokens = tokens.map(|hook| hook.cost(response));
            let limiter = match &layer.settings.on_store_failure {
                StoreFailurePolicy::LocalShare(local) if self.by_share => local,
                _ => &layer.settings.limiter,
            };
            let tokens = tokens.fold(0, u32::saturating_add);
            if tokens > 0 {
                limiter.charge(decision, tokens);
            }
        }
        if let Some(key) = &decision.key
            && hooks.read_blocks()
        {
            let decided_by_store = (!self.by_share).then_some(decision);
            layer.block(key, decided_by_store, response);
        }
    }
}
