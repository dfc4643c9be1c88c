//! The public results of requests: the [`Decision`], the [`BucketState`] after it, and the [`Balance`] of each quota.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::bucket::Bucket;
use crate::bucket::level::{Level, Moment};
use crate::bucket::quota::Limit;
use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::key::Key;
use crate::telemetry::Outcome;

/// The decision on a request, with the state of the bucket after it.
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
    /// The requested number of tokens. If several limits have [different costs](crate::token_bucket::Costs): the cost
    /// of the limit that refused the request, otherwise the largest cost.
    pub cost: u32,
    /// Whether this process made the decision without a call to the store: with
    /// [prefetched](crate::TokenBucket::prefetch) tokens, or by a
    /// [cached refusal](crate::TokenBucket::cache_refusals). Always `false` for a store in memory.
    pub is_local: bool,
    /// The key of the request, as the layer's extractor made it, for example to
    /// [charge more](crate::TokenBucket::charge). `None` if the request was not decided by a layer.
    ///
    /// With [several limits](crate::TokenBuckets), the key combines the keys of all limits. It is not the key of a
    /// single bucket.
    pub key: Option<Key>,
    /// The state of the bucket after the decision.
    pub state: BucketState,
    pub(crate) admitted: bool,
    /// The limit that refused the request, if there are several limits.
    pub(crate) by: Option<Refuser>,
    /// The cost for each quota, if several limits have different ones.
    pub(crate) costs: Option<Arc<[u32]>>,
}

/// The limit and the quota in the decision that refused a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refuser {
    pub(crate) limit: u8,
    pub(crate) quota: u8,
    /// Whether the bucket of that limit is blocked.
    pub(crate) is_blocked: bool,
}

impl Refuser {
    /// The limit at the position `limit` refused a request for `cost` tokens. Its quotas begin at the position `quota`.
    pub(crate) fn new(limit: usize, quota: usize, state: &BucketState, cost: i64) -> Self {
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
    pub(crate) fn free(quotas: Quotas) -> Self {
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

    /// Refuses a request because one of its quotas is 0, without a call to the store. The state is that of an unused
    /// bucket.
    pub(crate) fn closed(quotas: &Quotas, cost: u32) -> Self {
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

    /// The decision on a cost of zero, on any other cost under a quota of 0, or the error for a cost above the burst of
    /// a quota.
    pub(crate) fn without_state(quotas: &Quotas, cost: u32) -> Option<Result<Self, Error>> {
        let most = quotas.max_cost();
        match cost {
            0 => Some(Ok(Self::free(quotas.clone()))),
            _ if most == 0 => Some(Ok(Self::closed(quotas, cost))),
            _ if cost > most => Some(Err(Error::exceeds_burst(cost, most))),
            _ => None,
        }
    }

    /// A decision of the store.
    pub(crate) fn new(cost: i64, admitted: bool, state: BucketState) -> Self {
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
        let retry_after = self.retry_after();
        let is_closed = self.is_closed();
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

    /// Returns the name of the quota that refused the request: the first one, if several refused it. `None` if the
    /// request is admitted.
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
    pub(crate) fn act(&self) -> i64 {
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
    /// Returns the token bucket's decision on a refusal.
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

/// The state of a bucket.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Quota, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let quotas = [Quota::per_minute(10).named("minute"), Quota::per_hour(100).named("hour")];
/// let bucket = TokenBucket::new(&Store::in_memory(), "api", quotas)?;
///
/// let state = bucket.peek("ann").await?;
/// assert_eq!((state.remaining(), state.tightest().name), (10, "minute"));
/// assert_eq!(state.reset_after(), Some(Duration::ZERO)); // full
/// assert_eq!(state.blocked_for(), Duration::ZERO);
/// assert_eq!(state.available_after(11), None); // more than the burst of 10
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct BucketState {
    /// The quotas of the call.
    pub(crate) quotas: Quotas,
    pub(crate) now: i64,
    pub(crate) bucket: Bucket,
}

impl BucketState {
    /// Returns the number of tokens available now: the minimum over all quotas, or 0 while the bucket is blocked.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.bucket
            .pairs(&self.quotas)
            .map(|(level, limit)| self.tokens(level, limit))
            .min()
            .unwrap_or(0)
    }

    /// Returns when the bucket is full and unblocked again; `None` if never.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.balances()
            .map(|balance| balance.reset_after)
            .try_fold(self.blocked_for(), |longest, reset| {
                reset.map(|reset| reset.max(longest))
            })
    }

    /// Returns how long the bucket stays blocked by [`TokenBucket::block_for`](crate::TokenBucket::block_for); zero
    /// if it is not blocked.
    #[must_use]
    pub fn blocked_for(&self) -> Duration {
        micros(self.blocked())
    }

    /// Returns the number of tokens that are [held](crate::TokenBucket::authorize). They count as used in
    /// [`remaining`](Self::remaining), but are not charged yet.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_minute(1000))?;
    /// let hold = bucket.authorize("ann", 400).await?;
    /// let state = bucket.peek("ann").await?;
    /// assert_eq!((state.held(), state.remaining()), (400, 600));
    /// # hold.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn held(&self) -> u32 {
        u32::try_from(self.bucket.held()).unwrap_or(u32::MAX)
    }

    pub(crate) fn blocked(&self) -> i64 {
        self.bucket.blocked_until - self.now
    }

    /// Returns when `cost` tokens are available, if no other request takes any; `None` if never.
    #[must_use]
    pub fn available_after(&self, cost: u32) -> Option<Duration> {
        let mut after = self.bucket.clone();
        after.charge(&self.quotas, self.now, cost.into());
        let never = |(level, limit): (&Level, &Limit)| {
            limit.is_closed
                || i64::from(cost) > limit.burst
                || (limit.never_refill() && level.tokens(limit, self.now) < 0)
        };
        if after.pairs(&self.quotas).any(never) {
            return None;
        }
        let held_until = self.bucket.held_until(&self.quotas, self.now, cost);
        Some(micros(
            after.act(&self.quotas, self.now).max(held_until) - self.now,
        ))
    }

    /// Returns when all quotas have tokens for their costs; `None` if never.
    pub(crate) fn available_after_each(&self, costs: &[u32]) -> Option<Duration> {
        let mut each = self.bucket.pairs(&self.quotas).zip(costs).enumerate();
        each.try_fold(
            self.blocked_for(),
            |longest, (at, ((level, limit), cost))| {
                if self.free(level, limit) >= i64::from(*cost) {
                    return Some(longest);
                }
                let bucket =
                    Bucket::new(self.bucket.blocked_until, SmallVec::from_slice(&[*level]));
                let alone = Self {
                    quotas: self.quotas.part(at..at + 1),
                    now: self.now,
                    bucket,
                };
                alone.available_after(*cost).map(|after| after.max(longest))
            },
        )
    }

    /// The first quota that has fewer than `cost` tokens.
    pub(crate) fn lacking(&self, cost: i64) -> Option<usize> {
        self.bucket
            .pairs(&self.quotas)
            .position(|(level, limit)| self.free(level, limit) < cost)
    }

    /// The tokens available now that are not held; negative if tokens are owed.
    fn free(&self, level: &Level, limit: &Limit) -> i64 {
        let free = level.tokens(limit, self.now) - self.bucket.held();
        if limit.is_closed { free.min(0) } else { free }
    }

    /// Returns the balance of each quota, in the order of the quotas.
    pub fn balances(&self) -> impl Iterator<Item = Balance<'_>> {
        self.bucket
            .pairs(&self.quotas)
            .map(|(level, limit)| self.balance(level, limit))
    }

    /// Returns the tightest quota: the one with the fewest tokens left; of equal ones, the slowest to refill.
    #[must_use]
    pub fn tightest(&self) -> Balance<'_> {
        let slowest = |balance: &Balance<'_>| Reverse(balance.reset_after.unwrap_or(Duration::MAX));
        let tightest = self
            .balances()
            .min_by_key(|balance| (balance.remaining, slowest(balance)));
        tightest.unwrap_or_else(|| self.balance(&self.bucket.levels[0], &self.quotas.limits()[0]))
    }

    /// The number of tokens available now under one quota.
    fn tokens(&self, level: &Level, limit: &Limit) -> u32 {
        if self.blocked() > 0 {
            return 0;
        }
        u32::try_from(self.free(level, limit).max(0)).unwrap_or(u32::MAX)
    }

    fn balance<'a>(&self, level: &Level, limit: &'a Limit) -> Balance<'a> {
        let remaining = self.tokens(level, limit);
        let refills = limit.num != 0;
        let window = level.window(self.now);
        let effective_window = || match (i64::from(remaining), window) {
            (0, _) => {
                level
                    .next(limit, self.now, self.bucket.held())
                    .max(self.now)
                    - self.now
            }
            (_, Some((_, next))) => next - self.now,
            (left, None) => Moment::default().advance(limit, left).ceil(),
        };
        let has_window = !limit.is_closed && (refills || window.is_some());
        Balance {
            name: &limit.name,
            limit: if limit.is_closed {
                0
            } else {
                u32::try_from(limit.burst).unwrap_or(u32::MAX)
            },
            remaining,
            window: has_window.then(|| micros(window.map_or(limit.span, |(length, _)| length))),
            effective_window: has_window.then(|| micros(effective_window().max(self.blocked()))),
            reset_after: match refills {
                _ if limit.is_closed => None,
                true => Some(micros(level.tat.ceil() - self.now)),
                false => level.unused_from().map(|from| micros(from - self.now)),
            },
        }
    }
}

impl fmt::Debug for BucketState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketState")
            .field("blocked_for", &self.blocked_for())
            .field("balances", &self.balances().collect::<Vec<_>>())
            .finish()
    }
}

/// The state of a bucket under one of its quotas.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::{Quota, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(10).named("calls"))?;
/// let decision = bucket.allow_n("ann", 4).await?;
///
/// let balance = decision.state.tightest();
/// assert_eq!((balance.name, balance.limit, balance.remaining), ("calls", 10, 6));
/// assert_eq!(balance.window, Some(Duration::from_secs(1))); // 10 tokens at 10 a second
/// assert_eq!(balance.effective_window, Some(Duration::from_millis(600))); // the 6 that are left
/// assert_eq!(balance.reset_after, Some(Duration::from_millis(400))); // the 4 that are missing
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Balance<'a> {
    /// The [name](crate::Quota::named) of the quota.
    pub name: &'a str,
    /// The burst of the quota. 0: it is [closed](crate::token_bucket#closed-limits).
    pub limit: u32,
    /// The number of tokens available now.
    pub remaining: u32,
    /// How long an empty bucket takes to fill; `None` if it never does. For a calendar quota: the length of the current
    /// window; `None` in the decision on a cost of 0, which does not read the time from the store.
    pub window: Option<Duration>,
    /// The time in which as many tokens refill as are [left](Self::remaining). A client that spreads the remaining
    /// tokens over this time is not refused. If no tokens are left: when the next token is available. For a calendar
    /// quota: when the next window starts. `None` if tokens never refill.
    pub effective_window: Option<Duration>,
    /// When the quota is full again; `None` if never.
    pub reset_after: Option<Duration>,
}

pub(crate) fn micros(span: i64) -> Duration {
    Duration::from_micros(u64::try_from(span).unwrap_or(0))
}
