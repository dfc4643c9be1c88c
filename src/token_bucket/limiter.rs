//! What a layer asks: the buckets of one limit, or of several.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::acquire::{Decide, Waiting};
use super::operations::Reserve;
use super::quota::Quotas;
use super::several::{ReserveAll, keys_of};
use super::{Decision, Several, TokenBucket};
use crate::telemetry::Decisions;
use crate::{Error, Key};

#[derive(Clone, Debug)]
pub(crate) enum Limiter {
    One(TokenBucket),
    /// A key combines the keys of a request for each limit.
    All {
        several: Several,
        max_wait: Duration,
    },
}

/// A request, decided at once or not.
#[expect(clippy::large_enum_variant, reason = "it is matched where it is made")]
pub(crate) enum Begun {
    Decided(Result<Decision, Error>, Key),
    Pending(Acquire),
}

/// A decision in progress, followed by its delay. If it is dropped before the request may act, it gives the tokens
/// back.
pub(crate) struct Acquire {
    /// With the quotas and the longest wait of this request.
    limiter: Limiter,
    key: Key,
    cost: u32,
    step: Step,
}

#[expect(clippy::large_enum_variant, reason = "it is kept in a box with the request")]
enum Step {
    One(Decide<Reserve>),
    All(Decide<ReserveAll>),
    Waiting(BoxFuture<'static, Result<Decision, Error>>),
}

impl Limiter {
    /// Begins to decide a request, which waits only if `may_wait`.
    pub(crate) fn begin(&self, quotas: Option<&Quotas>, key: Key, cost: u32, may_wait: bool) -> Begun {
        if let (Self::All { .. }, Some(_)) = (self, quotas) {
            return self.with(quotas, may_wait).begin(None, key, cost, true);
        }
        match self.step(quotas, &key, cost, may_wait) {
            Step::One(Decide::Decided(Some(decided))) | Step::All(Decide::Decided(Some(decided))) => {
                Begun::Decided(decided, key)
            }
            step => Begun::Pending(Acquire { limiter: self.with(quotas, may_wait), key, cost, step }),
        }
    }

    /// As [`begin`](Self::begin), for a caller that polls the decision in any case.
    pub(crate) fn acquire(&self, quotas: Option<&Quotas>, key: Key, cost: u32, may_wait: bool) -> Acquire {
        let limiter = self.with(quotas, may_wait);
        let step = limiter.step(None, &key, cost, true);
        Acquire { limiter, key, cost, step }
    }

    fn with(&self, quotas: Option<&Quotas>, may_wait: bool) -> Self {
        let this = if may_wait { self.clone() } else { self.clone().with_max_wait(Duration::ZERO) };
        match (this, quotas) {
            (Self::One(bucket), Some(quotas)) => Self::One(bucket.with_quotas(quotas)),
            (Self::All { several, max_wait }, Some(quotas)) => {
                Self::All { several: several.with_quotas_of_first(quotas), max_wait }
            }
            (this, None) => this,
        }
    }

    fn step(&self, quotas: Option<&Quotas>, key: &Key, cost: u32, may_wait: bool) -> Step {
        match self {
            Self::One(bucket) => {
                let quotas = quotas.unwrap_or(&bucket.quotas);
                let wait = if may_wait { bucket.max_wait } else { 0 };
                match Decide::begin(bucket, quotas, key, cost, wait) {
                    Decide::Decided(Some(Ok(decision))) if wait > 0 && !decision.delay().is_zero() => {
                        Step::Waiting(Waiting::new(bucket, quotas, key, decision).end())
                    }
                    decide => Step::One(decide),
                }
            }
            Self::All { several, max_wait } if may_wait && !max_wait.is_zero() => {
                Step::Waiting(Box::pin(several.clone().decide_within(key.clone(), cost, *max_wait)))
            }
            Self::All { several, .. } => Step::All(several.decide(key, cost)),
        }
    }

    pub(crate) fn with_max_wait(self, max_wait: Duration) -> Self {
        match self {
            Self::One(bucket) => Self::One(bucket.with_max_wait(max_wait)),
            Self::All { several, .. } => Self::All { several, max_wait },
        }
    }

    pub(crate) fn cache_refusals(self, cache: bool) -> Self {
        match self {
            Self::One(bucket) => Self::One(bucket.cache_refusals(cache)),
            Self::All { several, max_wait } => Self::All { several: several.cache_refusals(cache), max_wait },
        }
    }

    pub(crate) fn prefetch(self, hold: Duration) -> Result<Self, Error> {
        match self {
            Self::One(bucket) => bucket.prefetch(hold).map(Self::One),
            Self::All { .. } => Err(Error::invalid("prefetch supports only one limit, not several")),
        }
    }

    /// The same limits in the memory of this process, shared by so many processes.
    pub(crate) fn local_share(&self, replicas: NonZeroU32) -> Self {
        match self {
            Self::One(bucket) => Self::One(bucket.local_share(replicas)),
            Self::All { several, max_wait } => {
                Self::All { several: several.local_share(replicas), max_wait: *max_wait }
            }
        }
    }

    /// This local share with a share of the quotas of `other`, and its longest wait.
    fn standing_in_for(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::One(local), Self::One(other)) => Self::One(local.standing_in_for(other)),
            (Self::All { several: local, .. }, Self::All { several, max_wait }) => {
                Self::All { several: local.standing_in_for(several), max_wait: *max_wait }
            }
            _ => self.clone(),
        }
    }

    pub(crate) fn decisions(&self) -> &Decisions {
        match self {
            Self::One(bucket) => bucket.decisions(),
            Self::All { several, .. } => several.decisions(),
        }
    }

    /// The bucket of the first limit, which identifies the sender of a request.
    pub(crate) fn first(&self) -> &TokenBucket {
        match self {
            Self::One(bucket) => bucket,
            Self::All { several, .. } => several.first(),
        }
    }

    /// Which of several limits refused the request, and the key of that limit.
    pub(crate) fn refused(&self, key: &Key, decision: &Decision) -> Option<(usize, Key)> {
        let (Self::All { .. }, Some(refuser)) = (self, decision.by) else { return None };
        // Limits without a key are not asked.
        let keys = keys_of(key).into_iter().enumerate();
        keys.filter_map(|(limit, key)| Some((limit, key?))).nth(refuser.limit.into())
    }

    /// Blocks the key of the first limit, in the background.
    pub(crate) fn block(&self, key: Key, duration: Duration) {
        let key = match self {
            Self::One(_) => Some(key),
            Self::All { .. } => keys_of(&key).into_iter().next().flatten(),
        };
        if let Some(key) = key {
            self.first().block_detached(key, duration);
        }
    }

    /// Charges the additional cost of a request, in the background.
    pub(crate) fn charge(&self, decision: &Decision, tokens: u32) {
        let Some(key) = decision.key.clone() else { return };
        match self {
            Self::One(bucket) => {
                let quotas = &decision.state.quotas;
                // Uses the bucket's own quotas if they are equal, so that charges share one call.
                match bucket.quotas() == quotas {
                    true => bucket.charge_detached(key, tokens),
                    false => bucket.with_quotas(quotas).charge_detached(key, tokens),
                }
            }
            Self::All { several, .. } => several.charge_detached(keys_of(&key), decision, tokens),
        }
    }
}

impl Acquire {
    /// Asks this process's local share instead, after an outage.
    pub(crate) fn ask_share(&mut self, local: &Limiter) {
        *self = local.standing_in_for(&self.limiter).acquire(None, self.key.take(), self.cost, true);
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
                Step::One(decide) => {
                    let decision = ready!(Pin::new(decide).poll(context))?;
                    match &this.limiter {
                        Limiter::One(bucket) if !decision.delay().is_zero() => {
                            let waiting = Waiting::new(bucket, &bucket.quotas, &this.key, decision);
                            this.step = Step::Waiting(waiting.end());
                        }
                        _ => return Poll::Ready(Ok(decision)),
                    }
                }
                Step::All(decide) => return Pin::new(decide).poll(context),
                Step::Waiting(waiting) => return waiting.as_mut().poll(context),
            }
        }
    }
}
