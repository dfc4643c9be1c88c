//! Decisions of a bucket, and its state.

use std::fmt;
use std::time::Duration;

use super::state::{Bucket, Level, Moment};
use crate::telemetry::Outcome;
use crate::token_bucket::quota::{Limit, Quotas};
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
/// assert!(decision.is_admitted() && !decision.is_local());
/// assert_eq!((decision.cost(), decision.delay()), (4, Duration::ZERO));
/// assert_eq!((decision.remaining(), decision.limit()), (6, 10)); // of the tightest quota
/// assert_eq!(decision.reset_after(), Some(Duration::from_secs(144))); // 4 tokens of 100 an hour
/// let left: Vec<_> = decision.state().balances().map(|quota| (quota.name(), quota.remaining())).collect();
/// assert_eq!(left, [("minute", 6), ("hour", 96)]);
///
/// let refused = bucket.allow_n("ann", 8).await?;
/// assert_eq!(refused.refused_by(), Some("minute"));
/// assert!(refused.retry_after().is_some_and(|after| after.as_secs() <= 12)); // 2 tokens of 10 a minute
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Decision {
    /// In tokens; fits in a `u32`.
    pub(super) cost: i64,
    pub(super) admitted: bool,
    /// Whether this process made the decision without a call to the store.
    pub(super) is_local: bool,
    /// The limit that refused the request, if there are several limits.
    pub(super) by: Option<Refuser>,
    /// The key of the request, if a layer admitted it.
    pub(crate) key: Option<Key>,
    pub(super) state: BucketState,
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
        Self { limit: limit as u8, quota: quota as u8, is_blocked: state.blocked() > 0 }
    }
}

impl Decision {
    /// Admits a request with a cost of 0, without a call to the store. The state is that of an unused bucket.
    pub(super) fn free(quotas: Quotas) -> Self {
        let bucket = Bucket::full(&quotas);
        Self {
            cost: 0,
            admitted: true,
            is_local: false,
            by: None,
            key: None,
            state: BucketState { quotas, now: 0, bucket },
        }
    }

    /// Converts a refusal to an error.
    pub(crate) fn refused(self) -> Error {
        let retry_after = self.retry_after();
        Error::refused_by(self, retry_after)
    }

    /// Returns whether the request is admitted. It may act after its [`delay`](Self::delay).
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Returns the requested number of tokens.
    #[must_use]
    pub fn cost(&self) -> u32 {
        u32::try_from(self.cost).unwrap_or(u32::MAX)
    }

    /// Returns how long to wait before acting. It is zero unless the tokens were reserved ahead of time, and zero
    /// for refusals.
    #[must_use]
    pub fn delay(&self) -> Duration {
        if self.admitted { micros(self.act() - self.state.now) } else { Duration::ZERO }
    }

    /// Returns when the same request may be admitted without waiting, if no other request comes before it. It is
    /// never zero. `None` if the request is admitted, or can never be admitted.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.admitted { None } else { self.state.available_after(self.cost()) }
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
        let quota = self.by.map_or_else(|| self.state.lacking(self.cost).unwrap_or(0), |by| by.quota.into());
        self.state.quotas.limits().get(quota).map(|limit| &*limit.name)
    }

    /// The limit that refused the request, if there are several limits.
    pub(crate) fn refuser(&self) -> Option<Refuser> {
        self.by
    }

    /// Returns the key of the request, as the layer's extractor made it, for example to
    /// [charge more](crate::TokenBucket::charge). `None` if the request was not decided by a layer.
    ///
    /// With [several limits](crate::TokenBuckets), the key combines those of all limits. No single bucket has it.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Returns the state of the bucket after the decision.
    #[must_use]
    pub fn state(&self) -> &BucketState {
        &self.state
    }

    /// Returns the burst of the [tightest](BucketState::tightest) quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.state.tightest().limit()
    }

    /// Returns the number of tokens available now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.state.remaining()
    }

    /// Returns when the bucket is full again; `None` if never.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.state.reset_after()
    }

    /// The time at which this admitted request may act, by the clock of the store.
    pub(super) fn act(&self) -> i64 {
        self.state.bucket.act(&self.state.quotas, self.state.now)
    }

    /// Returns whether this process made the decision without a call to the store: with
    /// [prefetched](crate::TokenBucket::prefetch) tokens, or by a
    /// [cached refusal](crate::TokenBucket::cache_refusals). Always `false` for a store in memory.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.is_local
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
/// assert_eq!((state.remaining(), state.tightest().name()), (10, "minute"));
/// assert_eq!(state.reset_after(), Some(Duration::ZERO)); // full
/// assert_eq!(state.blocked_for(), Duration::ZERO);
/// assert_eq!(state.available_after(11), None); // more than the burst of 10
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct BucketState {
    pub(super) quotas: Quotas,
    pub(super) now: i64,
    pub(super) bucket: Bucket,
}

impl BucketState {
    /// The quotas of the call.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Returns the number of tokens available now: the minimum over all quotas, or 0 while the bucket is blocked.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.tightest().remaining()
    }

    /// Returns when the bucket is full and unblocked again; `None` if never.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.balances()
            .map(|balance| balance.reset_after())
            .try_fold(self.blocked_for(), |longest, reset| reset.map(|reset| reset.max(longest)))
    }

    /// Returns how long the bucket stays blocked by [`TokenBucket::block_for`](crate::TokenBucket::block_for); zero
    /// if it is not blocked.
    #[must_use]
    pub fn blocked_for(&self) -> Duration {
        micros(self.blocked())
    }

    fn blocked(&self) -> i64 {
        self.bucket.blocked_until - self.now
    }

    /// Returns when `cost` tokens are available, if no other request takes any; `None` if never.
    #[must_use]
    pub fn available_after(&self, cost: u32) -> Option<Duration> {
        let mut after = self.bucket.clone();
        after.charge(&self.quotas, self.now, cost.into());
        let never = |(level, limit): (&Level, &Limit)| {
            i64::from(cost) > limit.burst || (limit.num == 0 && level.tokens(limit, self.now) < 0)
        };
        if after.pairs(&self.quotas).any(never) {
            return None;
        }
        Some(micros(after.act(&self.quotas, self.now) - self.now))
    }

    /// The first quota that has fewer than `cost` tokens.
    pub(super) fn lacking(&self, cost: i64) -> Option<usize> {
        self.bucket.pairs(&self.quotas).position(|(level, limit)| level.tokens(limit, self.now) < cost)
    }

    /// Returns the balance of each quota, in the order of the quotas.
    pub fn balances(&self) -> impl Iterator<Item = Balance<'_>> {
        let (now, blocked) = (self.now, self.blocked());
        self.bucket.pairs(&self.quotas).map(move |(level, limit)| Balance { level, limit, now, blocked })
    }

    /// Returns the tightest quota: the one with the fewest tokens left; of equal ones, the slowest to refill.
    #[must_use]
    pub fn tightest(&self) -> Balance<'_> {
        let slowest =
            |balance: &Balance<'_>| std::cmp::Reverse(balance.reset_after().unwrap_or(Duration::MAX));
        let first = Balance {
            level: &self.bucket.levels[0],
            limit: &self.quotas.limits()[0],
            now: self.now,
            blocked: self.blocked(),
        };
        if self.quotas.limits().len() == 1 {
            return first;
        }
        self.balances().min_by_key(|balance| (balance.remaining(), slowest(balance))).unwrap_or(first)
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
/// let balance = decision.state().tightest();
/// assert_eq!((balance.name(), balance.limit(), balance.remaining()), ("calls", 10, 6));
/// assert_eq!(balance.window(), Some(Duration::from_secs(1))); // 10 tokens at 10 a second
/// assert_eq!(balance.effective_window(), Some(Duration::from_millis(600))); // the 6 that are left
/// assert_eq!(balance.reset_after(), Some(Duration::from_millis(400))); // the 4 that are missing
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct Balance<'a> {
    level: &'a Level,
    limit: &'a Limit,
    now: i64,
    /// How long the bucket stays blocked, µs.
    blocked: i64,
}

impl<'a> Balance<'a> {
    /// Returns the [name](crate::Quota::named) of the quota.
    #[must_use]
    pub fn name(&self) -> &'a str {
        &self.limit.name
    }

    /// Returns the burst of the quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        u32::try_from(self.limit.burst).unwrap_or(u32::MAX)
    }

    /// Returns the number of tokens available now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        if self.blocked > 0 {
            return 0;
        }
        u32::try_from(self.level.tokens(self.limit, self.now).max(0)).unwrap_or(u32::MAX)
    }

    /// Returns how long an empty bucket takes to fill; `None` if it never does.
    #[must_use]
    pub fn window(&self) -> Option<Duration> {
        (self.limit.num != 0).then(|| micros(self.limit.span))
    }

    /// Returns the time in which as many tokens come back as are [left](Self::remaining). A client that spreads the
    /// remaining tokens over this time is not refused. If no tokens are left, returns when the next token is
    /// available. `None` if tokens never come back.
    #[must_use]
    pub fn effective_window(&self) -> Option<Duration> {
        if self.limit.num == 0 {
            return None;
        }
        let window = match i64::from(self.remaining()) {
            0 => self.level.next(self.limit, self.now) - self.now,
            left => Moment::default().advance(self.limit, left).ceil(),
        };
        Some(micros(window.max(self.blocked)))
    }

    /// Returns when the quota is full again; `None` if never.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        if self.limit.num == 0 {
            return (self.level.tat.whole == 0).then_some(Duration::ZERO);
        }
        Some(micros(self.level.tat.ceil() - self.now))
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

impl fmt::Debug for Balance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balance")
            .field("name", &self.name())
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("reset_after", &self.reset_after())
            .finish()
    }
}

fn micros(span: i64) -> Duration {
    Duration::from_micros(u64::try_from(span).unwrap_or(0))
}

impl Outcome {
    pub(crate) fn of(decision: &Decision) -> Self {
        match (decision.is_admitted(), decision.is_local()) {
            (true, _) => Self::Admitted,
            (false, false) => Self::Refused,
            (false, true) => Self::RefusedFromCache,
        }
    }
}
