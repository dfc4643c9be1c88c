//! How a rate limit layer handles a request: it finds its key and quotas, requests a decision, counts it, and calls the
//! hooks before and after the inner service.

use std::sync::Arc;

use tower::Service;

use crate::bucket::chosen::ChosenQuotas;
use crate::bucket::decision::Decision;
use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::key::Key;
use crate::layers::key::Extracted;
use crate::layers::rate_limit::future::{Passing, ResponseFuture, State};
use crate::layers::rate_limit::hooks::Block;
use crate::layers::rate_limit::quotas::Rows;
use crate::layers::rate_limit::{RateLimitLayer, Settings};
use crate::layers::refusal::{Refusal, Reject, refused};
use crate::layers::{Middleware, discard_ready, take_ready};
use crate::store::failure::StoreFailurePolicy;
use crate::telemetry::Outcome;
use crate::token_bucket::limiter::{Begun, Limiter};

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
    /// Decides a request, or returns the state in which its decision is pending.
    fn begin<S: Service<Req> + Clone>(&self, inner: &mut S, mut request: Req) -> State<S, Req> {
        let settings = &self.settings;
        let cost = self.cost_of(&request);
        if cost == 0 {
            return State::unlimited(inner, request);
        }
        let rows = match Rows::of(&self.quotas, &request) {
            Ok(rows) => rows,
            Err(error) => return self.undecided(inner, request, error),
        };
        let key = match self.key_of(&request, &rows) {
            Extracted::Ready(Ok(Some(key))) => key,
            Extracted::Ready(Ok(None)) => return State::unlimited(inner, request),
            Extracted::Ready(Err(error)) => return self.undecided(inner, request, error),
            pending => {
                let limiter = settings.limiter.clone();
                let quotas = rows.quotas(&self.quotas, &request);
                let found = look_up(limiter, pending, cost, quotas);
                return State::looking_up(Box::pin(found), cost, inner, request);
            }
        };
        let chosen = rows.quotas(&self.quotas, &request);
        let quotas = match settings.limiter.learned_or(&key, cost, chosen) {
            ChosenQuotas::Ready(Ok(quotas)) => quotas,
            ChosenQuotas::Ready(Err(error)) => return self.undecided(inner, request, error),
            pending => {
                let found = async move { Ok(Some((key, pending.get().await?))) };
                return State::looking_up(Box::pin(found), cost, inner, request);
            }
        };
        let is_read = !self.hooks.needs_no_decision();
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
                discard_ready(inner);
                State::Refused {
                    refusal: Some(refusal),
                }
            }
        }
    }

    /// Handles a request whose key or quotas are not available.
    fn undecided<S: Service<Req> + Clone>(
        &self,
        inner: &mut S,
        request: Req,
        error: Error,
    ) -> State<S, Req> {
        if self.settings.passes_undecided(&error) {
            return State::unlimited(inner, request);
        }
        discard_ready(inner);
        State::Refused {
            refusal: Some(error.into()),
        }
    }
}

/// Looks up the key of a request, and then its quotas. `None`: the request passes without a limit.
async fn look_up(
    limiter: Limiter,
    key: Extracted,
    cost: u32,
    quotas: ChosenQuotas,
) -> Result<Option<(Key, Option<Quotas>)>, Error> {
    let Some(key) = key.await? else {
        return Ok(None);
    };
    let quotas = limiter.learned_or(&key, cost, quotas).get().await?;
    Ok(Some((key, quotas)))
}

impl Settings {
    /// The outcome that a request is counted as.
    pub(super) fn counted(&self, outcome: Outcome, may_pass: bool) -> Outcome {
        if self.shadow && !may_pass {
            Outcome::Shadowed
        } else {
            outcome
        }
    }

    /// Counts a request whose key or quotas are not available. Returns whether it passes.
    pub(super) fn passes_undecided(&self, error: &Error) -> bool {
        let decisions = self.limiter.decisions();
        decisions.tell_unextracted(error);
        decisions.count(self.counted(Outcome::of_error(error), false));
        self.shadow
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Whether requests cost different numbers of tokens.
    pub(super) fn is_weighted(&self) -> bool {
        self.cost.is_some() || !self.hooks.cost_of_response.is_empty()
    }

    /// The cost of a request in tokens.
    pub(super) fn cost_of(&self, request: &Req) -> u32 {
        self.cost.as_ref().map_or(1, |cost| cost.cost(request))
    }

    pub(super) fn key_of(&self, request: &Req, rows: &Rows) -> Extracted {
        self.settings
            .limiter
            .key_of(&self.keys, request, |first| rows.key(first))
    }

    /// Turns a refusal into a response or an error, with the fields of the layer.
    pub(super) fn refuse<E>(&self, refusal: Refusal) -> Result<Res, R::Error>
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

    /// Counts the outcome of a request and calls the hooks. Returns the refusal, unless the request passes.
    pub(super) fn settle(
        &self,
        decided: Result<Option<Decision>, Error>,
        outcome: Outcome,
        key: Key,
        request: &mut Req,
    ) -> Result<Passing, Refusal> {
        let settings = &self.settings;
        let is_shadow = settings.shadow;
        let count = |passes| {
            settings
                .limiter
                .decisions()
                .count(settings.counted(outcome, passes))
        };
        let mut decision = match decided {
            Ok(Some(decision)) => decision,
            Ok(None) => {
                count(true);
                return Ok(Passing::Undecided(key));
            }
            Err(error) => {
                count(false);
                return if is_shadow {
                    Ok(Passing::Undecided(key))
                } else {
                    Err(error.into())
                };
            }
        };
        if decision.is_admitted() {
            count(true);
            if self.hooks.needs_no_decision() {
                return Ok(Passing::Unlimited);
            }
            decision.key = Some(key);
            self.hooks
                .on_admit
                .iter()
                .for_each(|hook| hook(&decision, request));
            return Ok(Passing::Admitted {
                decision: Box::new(decision),
                by_share: outcome == Outcome::LocalShare,
            });
        }
        decision.key = Some(key.clone());
        self.refused(request, &key, &decision);
        count(false);
        if is_shadow {
            Ok(Passing::Undecided(key))
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

    /// Calls the hooks for a response, and charges or blocks its key as they return.
    pub(super) fn answered(&self, passing: &Passing, response: &mut Res) {
        let settings = &self.settings;
        let hooks = &self.hooks;
        let key = match passing {
            Passing::Unlimited => None,
            Passing::Undecided(key) => Some(key),
            Passing::Admitted { decision, by_share } => {
                hooks
                    .fields
                    .iter()
                    .for_each(|hook| hook(decision, self.is_weighted(), response));
                hooks
                    .on_response
                    .iter()
                    .for_each(|hook| hook(decision, response));
                let tokens = hooks
                    .cost_of_response
                    .iter()
                    .map(|hook| hook.cost(response));
                let limiter = match &settings.on_store_failure {
                    StoreFailurePolicy::LocalShare(local) if *by_share => local,
                    _ => &settings.limiter,
                };
                let tokens = tokens.fold(0, u32::saturating_add);
                if tokens > 0 {
                    limiter.charge(decision, tokens);
                }
                decision.key.as_ref()
            }
        };
        let learned = hooks
            .learn
            .as_ref()
            .filter(|_| key.is_some())
            .map(|hook| hook.learn(response));
        if let (
            Some(learned),
            Passing::Admitted {
                decision,
                by_share: false,
            },
        ) = (&learned, passing)
        {
            settings.limiter.learn(decision, learned);
        }
        let mut blocks = learned.map_or_else(Block::default, |learned| learned.block());
        for hook in &hooks.block_on_response {
            let block = hook.block_on_response(response);
            blocks.duration = blocks.duration.max(block.duration);
            blocks.ignored += block.ignored;
        }
        if blocks.ignored > 0 {
            settings.limiter.first().upstream_ignored(blocks.ignored);
        }
        if let (Some(duration), Some(key)) = (blocks.duration.filter(|block| !block.is_zero()), key)
        {
            if let StoreFailurePolicy::LocalShare(local) = &settings.on_store_failure {
                local.block(key, duration);
            }
            settings.limiter.block(key, duration);
        }
    }
}
