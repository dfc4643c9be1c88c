//! Decisions of a bucket.

#[cfg(all(test, feature = "http"))]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "http")]
use super::bucket_state::Balance;
use super::bucket_state::{BucketState, micros};
use super::state::Bucket;
use crate::telemetry::Outcome;
use crate::token_bucket::quota::Quotas;
use crate::{Error, Key};

/// The answer to a request, with the state of the bucket after it.
///
/// All times are durations from the moment of the decision, so no clocks are compared.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Quota, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let quotas = [Quota::per_minute(10).named("minute"), Quota::per_hour(100).named("hour")];
/// let bucket = TokenBucket::new(&Store::in_memory(), "api", quotas)?;
///
/// let decision = bucket.allow_n("ann", 4).await?;
/// assert!(decision.is_admitted() && !decision.is_local);
/// assert_eq!((decision.cost, decision.delay()), (4, Duration::ZERO));
/// assert_eq!((decision.remaining(), decision.state.tightest().limit), (6, 10)); // of the tightest quota
/// assert_eq!(decision.state.reset_after(), Some(Duration::from_secs(144))); // 4 tokens of 100 an hour
/// let left: Vec<_> = decision.state.balances().map(|quota| (quota.name, quota.remaining)).collect();
/// assert_eq!(left, [("minute", 6), ("hour", 96)]);
///
/// let refused = bucket.allow_n("ann", 8).await?;
/// assert_eq!(refused.refused_by(), Some("minute"));
/// assert!(refused.retry_after().is_some_and(|after| after.as_secs() <= 12)); // 2 tokens of 10 a minute
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Decision {
    /// The requested number of tokens. If several limits have [different costs](super::Costs): that of the limit that
    /// refused the request, or else the largest.
    pub cost: u32,
    /// Whether this process made the decision without a call to the store: with
    /// [prefetched](crate::TokenBucket::prefetch) tokens, or by a
    /// [cached refusal](crate::TokenBucket::cache_refusals). Always `false` for a store in memory.
    pub is_local: bool,
    /// The key of the request, as the layer's extractor made it, for example to
    /// [charge more](crate::TokenBucket::charge). `None` if the request was not decided by a layer.
    ///
    /// With [several limits](crate::TokenBuckets), the key combines those of all limits. No single bucket has it.
    pub key: Option<Key>,
    /// The state of the bucket after the decision.
    pub state: BucketState,
    pub(super) admitted: bool,
    /// The limit that refused the request, if there are several limits.
    pub(crate) by: Option<Refuser>,
    /// The cost for each quota, if several limits have different ones.
    pub(super) costs: Option<Arc<[u32]>>,
}

/// Which limit and which quota of the decision refused a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refuser {
    pub(crate) limit: u8,
    pub(crate) quota: u8,
    /// Whether the bucket of that limit is blocked.
    pub(crate) is_blocked: bool,
}

impl Refuser {
    /// The limit at the position `limit` refused a request for `cost` tokens. Its quotas begin at the position `quota`.
    pub(super) fn new(limit: usize, quota: usize, state: &BucketState, cost: i64) -> Self {
        let quota = quota + state.lacking(cost).unwrap_or(0);
        Self {
            limit: limit as u8,
            quota: quota as u8,
            is_blocked: state.blocked() > 0,
        }
    }
}

impl Decision {
    /// Admits a request with a cost of 0, without a call to the store. The state is that of an unused bucket.
    pub(super) fn free(quotas: Quotas) -> Self {
        let bucket = Bucket::full(&quotas);
        Self::new(
            0,
            true,
            BucketState {
                quotas,
                now: 0,
                bucket,
            },
        )
    }

    /// Refuses a request under quotas of which one is 0, without a call to the store. The state is that of an unused bucket.
    pub(super) fn closed(quotas: &Quotas, cost: u32) -> Self {
        let state = BucketState {
            quotas: quotas.clone(),
            now: 0,
            bucket: Bucket::full(quotas),
        };
        Self::new(cost.into(), false, state)
    }

    /// Whether it refuses a request because a quota is 0.
    pub(crate) fn is_closed(&self) -> bool {
        !self.admitted && self.state.quotas.are_closed()
    }

    /// The decision on a cost of zero, on any other under a quota of 0, and the error of a cost above the burst of a quota.
    pub(super) fn without_state(quotas: &Quotas, cost: u32) -> Option<Result<Self, Error>> {
        let most = quotas.max_cost();
        match cost {
            0 => Some(Ok(Self::free(quotas.clone()))),
            _ if most == 0 => Some(Ok(Self::closed(quotas, cost))),
            _ if cost > most => Some(Err(Error::exceeds_burst(cost, most))),
            _ => None,
        }
    }

    /// A decision of the store.
    pub(super) fn new(cost: i64, admitted: bool, state: BucketState) -> Self {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        Self {
            cost,
            is_local: false,
            key: None,
            state,
            admitted,
            by: None,
            costs: None,
        }
    }

    /// Converts a refusal to an error.
    pub(crate) fn refused(self) -> Error {
        let (retry_after, is_closed) = (self.retry_after(), self.is_closed());
        Error::refused_by(self, retry_after, is_closed)
    }

    /// Returns whether the request is admitted. It may act after its [`delay`](Self::delay).
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Returns how long to wait before acting. It is zero unless the tokens were reserved ahead of time, and zero
    /// for refusals.
    #[must_use]
    pub fn delay(&self) -> Duration {
        if self.admitted {
            micros(self.act() - self.state.now)
        } else {
            Duration::ZERO
        }
    }

    /// Returns when the same request may be admitted without waiting, if no other request comes before it. It is
    /// never zero. `None` if the request is admitted, or can never be admitted, as by a
    /// [closed](crate::token_bucket#closed-limits) limit.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.costs {
            _ if self.admitted => None,
            None => self.state.available_after(self.cost),
            Some(costs) => self.state.available_after_each(costs),
        }
    }

    /// The quotas that lack tokens for the request.
    #[cfg(feature = "http")]
    pub(crate) fn violated(&self) -> impl Iterator<Item = Balance<'_>> {
        let balances = self.state.balances().enumerate();
        balances
            .filter(|(quota, balance)| self.lacks(*quota, balance))
            .map(|(_, balance)| balance)
    }

    /// Whether the quota at this position lacks tokens for the request.
    #[cfg(feature = "http")]
    pub(crate) fn lacks(&self, quota: usize, balance: &Balance<'_>) -> bool {
        let cost = self
            .costs
            .as_ref()
            .and_then(|costs| costs.get(quota).copied());
        !self.admitted && balance.remaining < cost.unwrap_or(self.cost)
    }

    /// Returns the name of the quota that refused the request: the first, if several do. `None` if the request is
    /// admitted.
    ///
    /// With [several limits](crate::TokenBuckets), the name is `limit`, or `limit.quota` if the quota has a name.
    #[must_use]
    pub fn refused_by(&self) -> Option<&str> {
        if self.admitted {
            return None;
        }
        let quota = self.by.map_or_else(
            || self.state.lacking(self.cost.into()).unwrap_or(0),
            |by| by.quota.into(),
        );
        self.state
            .quotas
            .limits()
            .get(quota)
            .map(|limit| &*limit.name)
    }

    /// Returns the number of tokens available now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.state.remaining()
    }

    /// The time at which this admitted request may act, by the clock of the store.
    pub(super) fn act(&self) -> i64 {
        self.state.bucket.act(&self.state.quotas, self.state.now)
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("admitted", &self.admitted)
            .field("cost", &self.cost)
            .field("delay", &self.delay())
            .field("retry_after", &self.retry_after())
            .field("state", &self.state)
            .finish()
    }
}

impl Error {
    /// Returns the token bucket's decision behind a refusal.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "mail", Quota::per_minute(1).named("minute"))?;
    /// let bucket = bucket.with_max_wait(Duration::from_secs(10));
    /// bucket.wait("ann").await?;
    /// let error = bucket.wait("ann").await.unwrap_err();
    /// assert_eq!(error.decision().and_then(|decision| decision.refused_by()), Some("minute"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.refused_with()
    }
}

impl Outcome {
    pub(crate) fn of(decision: &Decision) -> Self {
        match (decision.is_admitted(), decision.is_local) {
            (true, _) => Self::Admitted,
            (false, false) => Self::Refused,
            (false, true) => Self::RefusedFromCache,
        }
    }
}
