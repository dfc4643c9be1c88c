//! The buckets of a layer: one limit, or several.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::bucket::Bucket;
use crate::bucket::charge::{Charge, Price};
use crate::bucket::chosen::ChosenQuotas;
use crate::bucket::decision::Decision;
use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::key::Key;
use crate::learn::Learned;
use crate::store::failure::Sharing;
use crate::store::memory::cells::Cells;
use crate::telemetry::counters::Decisions;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::acquire::{Decide, Waiting};
use crate::token_bucket::limits::{Several, keys_of};

#[derive(Clone, Debug)]
pub(crate) enum Limiter {
    One(TokenBucket),
    /// A key combines the keys of a request for each limit.
    All(Several),
}

/// A request whose decision is known or pending.
pub(crate) enum Begun {
    /// Admitted by a store in memory, for a caller that does not read the decision.
    Admitted,
    Decided(Result<Decision, Error>, Key),
    Pending(Acquire),
}

/// A decision in progress, followed by its delay. If it is dropped before the request may act, it gives the tokens
/// back.
pub(crate) struct Acquire {
    /// With the quotas and the maximum wait of this request.
    limiter: Limiter,
    key: Key,
    cost: u32,
    step: Step,
}

#[expect(
    clippy::large_enum_variant,
    reason = "it is kept in a box with the request"
)]
enum Step {
    Deciding(Decide),
    Waiting(BoxFuture<'static, Result<Decision, Error>>),
}

impl Limiter {
    /// Starts to decide a request. `is_read`: whether the caller reads the decision if the request is admitted.
    pub(crate) fn begin(
        &self,
        quotas: Option<&Quotas>,
        key: Key,
        cost: u32,
        is_read: bool,
    ) -> Begun {
        if let (Self::All(_), Some(_)) = (self, quotas) {
            return self.with(quotas).begin(None, key, cost, is_read);
        }
        if !is_read && let Some((bucket, cells)) = self.at_once(quotas, cost) {
            let quotas = quotas.unwrap_or(&bucket.quotas);
            // Not part of the reply, which stays small.
            let mut refused = None;
            let step = |bucket: &mut _, now| {
                if let Some(decision) = Charge::admit(quotas, cost, bucket, now) {
                    refused = Some(decision);
                }
            };
            if let Err(error) = cells.step(key.as_bytes(), step) {
                return Begun::Decided(Err(error), key);
            }
            return refused.map_or(Begun::Admitted, |refused| Begun::Decided(Ok(refused), key));
        }
        match self.step(quotas, &key, cost) {
            Step::Deciding(Decide::Decided(Some(decided))) => Begun::Decided(decided, key),
            step => Begun::Pending(Acquire {
                limiter: self.with(quotas),
                key,
                cost,
                step,
            }),
        }
    }

    /// The only bucket of a request, if it is in memory and the request does not wait.
    fn at_once(
        &self,
        quotas: Option<&Quotas>,
        cost: u32,
    ) -> Option<(&TokenBucket, &Cells<Bucket>)> {
        let Self::One(bucket) = self else { return None };
        let is_possible =
            bucket.max_wait == 0 && cost <= quotas.unwrap_or(&bucket.quotas).max_cost();
        Some((
            bucket,
            bucket.clients.namespace.cells().filter(|_| is_possible)?,
        ))
    }

    /// Like [`begin`](Self::begin), for a caller that polls the decision in any case.
    pub(crate) fn acquire(&self, quotas: Option<&Quotas>, key: Key, cost: u32) -> Acquire {
        let limiter = self.with(quotas);
        let step = limiter.step(None, &key, cost);
        Acquire {
            limiter,
            key,
            cost,
            step,
        }
    }

    /// The same limits with other quotas for the first limit.
    fn with(&self, quotas: Option<&Quotas>) -> Self {
        let Some(quotas) = quotas else {
            return self.clone();
        };
        self.map(|limit, bucket| {
            if limit == 0 {
                bucket.with_quotas(quotas)
            } else {
                bucket.clone()
            }
        })
    }

    fn map(&self, map: impl Fn(usize, &TokenBucket) -> TokenBucket) -> Self {
        match self {
            Self::One(bucket) => Self::One(map(0, bucket)),
            Self::All(several) => Self::All(several.map(map)),
        }
    }

    /// `quotas` are the quotas of one limit.
    fn step(&self, quotas: Option<&Quotas>, key: &Key, cost: u32) -> Step {
        let bucket = match self {
            Self::One(bucket) => bucket,
            Self::All(several) => {
                return Step::Deciding(several.decide(key, Price::Same(cost)));
            }
        };
        let quotas = quotas.unwrap_or(&bucket.quotas);
        let wait = bucket.max_wait;
        match Decide::begin(bucket, quotas, key, cost, wait) {
            Decide::Decided(Some(Ok(decision))) if wait > 0 && !decision.delay().is_zero() => {
                Step::Waiting(Waiting::new(bucket, quotas, key, decision).end())
            }
            decide => Step::Deciding(decide),
        }
    }

    pub(crate) fn with_max_wait(&self, max_wait: Duration) -> Self {
        match self {
            Self::One(bucket) => Self::One(bucket.with_max_wait(max_wait)),
            Self::All(several) => Self::All(several.with_max_wait(max_wait)),
        }
    }

    pub(crate) fn cache_refusals(&self, cache: bool) -> Self {
        self.map(|_, bucket| bucket.cache_refusals(cache))
    }

    /// The same limits. The quotas of the first one are learned from an upstream.
    pub(crate) fn learning(&self) -> Self {
        self.map(|limit, bucket| {
            if limit == 0 {
                bucket.learning()
            } else {
                bucket.clone()
            }
        })
    }

    /// The learned quotas of a request, otherwise the chosen ones. The chosen ones also apply if the learned quotas
    /// could never admit the request: otherwise no response could ever bring other quotas. A closed limit stays closed,
    /// whatever was learned.
    #[inline]
    pub(crate) fn learned_or(&self, key: &Key, cost: u32, chosen: ChosenQuotas) -> ChosenQuotas {
        let Some(learned) = &self.first().learned else {
            return chosen;
        };
        match self.first_key(key) {
            Some(key) => {
                let learned = learned.of(&key).for_cost(cost);
                chosen.if_closed_or(learned, self.first().quotas.are_closed())
            }
            None => chosen,
        }
    }

    /// Learns from the response to a request.
    pub(crate) fn learn(&self, decision: &Decision, told: &Learned) {
        let key = decision.key.as_ref().and_then(|key| self.first_key(key));
        if let (Some(key), Some(learned)) = (key, &self.first().learned) {
            learned.learn(self.first(), &key, decision, told);
        }
    }

    pub(crate) fn prefetch(self, hold: Duration) -> Result<Self, Error> {
        match self {
            Self::One(bucket) => bucket.prefetch(hold).map(Self::One),
            Self::All(_) => Err(Error::invalid(
                "prefetch supports only one limit, not several",
            )),
        }
    }

    /// The same limits in the memory of this process, with its share of the quotas.
    pub(crate) fn local_share(&self, sharing: Sharing) -> Self {
        match self {
            Self::One(bucket) => Self::One(bucket.local_share(sharing)),
            Self::All(several) => Self::All(several.local_share(sharing)),
        }
    }

    /// This local share with a share of the quotas of `other`.
    pub(crate) fn standing_in_for(&self, other: &Self) -> Self {
        let of = other.buckets();
        self.map(|limit, bucket| {
            of.get(limit)
                .map_or_else(|| bucket.clone(), |of| bucket.share_of(&of.quotas))
        })
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        match self {
            Self::One(bucket) => bucket.decisions(),
            Self::All(several) => several.decisions(),
        }
    }

    #[inline]
    fn buckets(&self) -> &[TokenBucket] {
        match self {
            Self::One(bucket) => std::slice::from_ref(bucket),
            Self::All(several) => several.buckets(),
        }
    }

    /// The bucket of the first limit, which identifies the sender of a request.
    #[inline]
    pub(crate) fn first(&self) -> &TokenBucket {
        match self {
            Self::One(bucket) => bucket,
            Self::All(several) => &several.buckets()[0],
        }
    }

    /// The position of the limit that refused the request, if there are several limits, and its key.
    pub(crate) fn refused(&self, key: &Key, decision: &Decision) -> Option<(usize, Key)> {
        let (Self::All(_), Some(refuser)) = (self, decision.by) else {
            return None;
        };
        // Limits without a key are skipped.
        let keys = keys_of(key).into_iter().enumerate();
        keys.filter_map(|(limit, key)| Some((limit, key?)))
            .nth(refuser.limit.into())
    }

    /// Blocks the key of the first limit, in the background.
    pub(crate) fn block(&self, key: &Key, duration: Duration) {
        if let Some(key) = self.first_key(key) {
            self.first().block_detached(key.into_owned(), duration);
        }
    }

    /// The key of the first limit.
    fn first_key<'a>(&self, key: &'a Key) -> Option<Cow<'a, Key>> {
        match self {
            Self::One(_) => Some(Cow::Borrowed(key)),
            Self::All(_) => keys_of(key).into_iter().next().flatten().map(Cow::Owned),
        }
    }

    /// Charges the additional cost of a request, in the background.
    pub(crate) fn charge(&self, decision: &Decision, tokens: u32) {
        let Some(key) = decision.key.clone() else {
            return;
        };
        match self {
            Self::One(bucket) => {
                let quotas = &decision.state.quotas;
                // Uses the bucket's own quotas if they are equal, so that charges share one call.
                match bucket.quotas() == quotas {
                    true => bucket.charge_detached(key, tokens),
                    false => bucket.with_quotas(quotas).charge_detached(key, tokens),
                }
            }
            Self::All(several) => several.charge_detached(keys_of(&key), decision, tokens),
        }
    }
}

impl Acquire {
    /// Decides with this process's local share, after an outage.
    pub(crate) fn ask_share(&mut self, local: &Limiter) {
        *self = local
            .standing_in_for(&self.limiter)
            .acquire(None, self.key.take(), self.cost);
    }

    /// Takes the key, after completion.
    pub(crate) fn take_key(&mut self) -> Key {
        self.key.take()
    }
}

impl Future for Acquire {
    type Output = Result<Decision, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match &mut this.step {
                Step::Deciding(decide) => {
                    let decision = ready!(Pin::new(decide).poll(context))?;
                    match &this.limiter {
                        Limiter::One(bucket) if !decision.delay().is_zero() => {
                            let waiting = Waiting::new(bucket, &bucket.quotas, &this.key, decision);
                            this.step = Step::Waiting(waiting.end());
                        }
                        _ => return Poll::Ready(Ok(decision)),
                    }
                }
                Step::Waiting(waiting) => return waiting.as_mut().poll(context),
            }
        }
    }
}
